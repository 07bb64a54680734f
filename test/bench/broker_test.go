package bench

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
)

// brokerVariable has this binary be an embedded broker in place of a test: it names
// the topic, of one partition. So the broker's processor time is not ours.
const brokerVariable = "BILLING_BENCH_BROKER"

// embeddedBroker starts such a process, and gives its address. It ends with the test.
func embeddedBroker(t testing.TB, topic string) (addr string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), brokerVariable+"="+topic)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	hold, err := cmd.StdinPipe() // it ends when this is closed
	if err != nil {
		t.Fatal(err)
	}
	says, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = hold.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(says).ReadString('\n')
	if err != nil {
		t.Fatal("the embedded broker has not said its address: ", err)
	}
	return strings.TrimSpace(line)
}

// beBroker is the process that embeddedBroker starts.
func beBroker(topic string) int {
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topic))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer broker.Close()
	fmt.Fprintln(os.Stdout, broker.ListenAddrs()[0])
	_, _ = io.Copy(io.Discard, os.Stdin) // until whoever started it is gone
	return 0
}
