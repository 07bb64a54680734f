package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"billing/cmd/billing/config"

	"github.com/spf13/cobra"
)

// healthTimeout bounds the whole exchange. The admin port itself answers within
// 3 s, also for a process that is stuck.
const healthTimeout = 5 * time.Second

func newHealthcheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "healthcheck",
		Short: "Ask the instance on this machine for its health",
		Long: `Asks /healthz on the address of admin.listen and writes what it says. Use it for
a container's health check. Lanes that are stuck are no failure: the answer
names them, and a restart repairs none. Of the configuration only admin.listen
is looked at.`,
		Example: `  billing healthcheck --config config.yaml
  BILLING_ADMIN_LISTEN=:9090 billing healthcheck`,
		Annotations: exits(`0  the process lives, even if lanes are stuck
2  wrong usage, or admin.listen is wrong
4  it does not answer, or says that it can do nothing any more`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			listen, err := config.LoadListen(configFlag(cmd))
			if err != nil {
				return err
			}
			return askHealth(cmd.Context(), listen, cmd.OutOrStdout())
		},
	}
}

// askHealth writes the answer of /healthz to out; an answer other than 200 is
// an error.
func askHealth(ctx context.Context, listen string, out io.Writer) error {
	url, err := healthURL(listen)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("healthcheck: %w", err)
	}
	// A proxy of the environment has no business between us and our own port.
	client := &http.Client{Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("healthcheck: the admin port does not answer (is the service running, and is admin.listen the same as its?): %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("healthcheck: read the answer of %s: %w", url, err)
	}
	if _, err := out.Write(body); err != nil {
		return fmt.Errorf("healthcheck: write: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("healthcheck: %s answered %s", url, resp.Status)
	}
	return nil
}

// healthURL is where a process that listens on the address is reached from the
// same machine: an address that stands for all of them is reached by loopback.
func healthURL(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("healthcheck: admin.listen: %w", err)
	}
	if port == "0" {
		return "", &usageError{fmt.Errorf("healthcheck: admin.listen has port 0, a port that nobody can know: give it a number")}
	}
	// [::] listens on IPv4, too, and a container may have no ::1.
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port) + "/healthz", nil
}
