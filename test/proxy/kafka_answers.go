package proxy

import (
	"bytes"
	"net"
	"reflect"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// PatchError makes a Patch that puts the error into every error field of the answer: applied, and answered with an
// error.
func PatchError(code *kerr.Error) Patch {
	return func(r *Request, answer []byte) []byte {
		resp := kmsg.ResponseForKey(int16(r.Key))
		resp.SetVersion(r.Version)
		if err := resp.ReadFrom(answer); err != nil {
			return nil
		}
		setErrors(resp, code)
		return resp.AppendTo(nil)
	}
}

// AnswerError makes an Answer that says no: not applied, and answered with an error in every error field. Topics,
// partitions and groups of the request come back in the answer.
func AnswerError(code *kerr.Error) Answer {
	return func(r *Request) []byte {
		req, err := r.Decode()
		if err != nil {
			return nil
		}
		resp := kmsg.ResponseForKey(int16(r.Key))
		echo(reflect.ValueOf(req).Elem(), reflect.ValueOf(resp).Elem())
		resp.SetVersion(r.Version)
		setErrors(resp, code)
		return resp.AppendTo(nil)
	}
}

func setErrors(resp kmsg.Response, code *kerr.Error) {
	structs(reflect.ValueOf(resp), func(v reflect.Value) {
		if f := v.FieldByName("ErrorCode"); f.IsValid() {
			f.SetInt(int64(code.Code))
		}
	})
}

// echo copies what request and answer have in common, by the names of the fields. A list of plain partitions in the
// request is one of structures in the answer.
func echo(from, to reflect.Value) {
	switch {
	case from.Type() == to.Type():
		to.Set(from)
	case from.Kind() == reflect.Struct && to.Kind() == reflect.Struct:
		for i := range to.NumField() {
			if f := from.FieldByName(to.Type().Field(i).Name); f.IsValid() {
				echo(f, to.Field(i))
			}
		}
	case from.Kind() == reflect.Slice && to.Kind() == reflect.Slice:
		to.Set(reflect.MakeSlice(to.Type(), from.Len(), from.Len()))
		for i := range from.Len() {
			if d, ok := to.Index(i).Addr().Interface().(interface{ Default() }); ok {
				d.Default()
			}
			echo(from.Index(i), to.Index(i))
		}
	case from.Kind() == reflect.Int32 && to.Kind() == reflect.Struct:
		if f := to.FieldByName("Partition"); f.IsValid() {
			f.Set(from)
		}
	}
}

// structs visits every structure in v.
func structs(v reflect.Value, visit func(reflect.Value)) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			structs(v.Elem(), visit)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Struct {
			for i := range v.Len() {
				structs(v.Index(i), visit)
			}
		}
	case reflect.Struct:
		visit(v)
		for i := range v.NumField() {
			structs(v.Field(i), visit)
		}
	default:
	}
}

// namesBrokers is true for answers that tell clients where brokers are. Those to Produce and Fetch are big, and name
// brokers only after a leader has moved: they are looked into only if the target's name is in them.
func namesBrokers(r *Request, body []byte, target string) bool {
	switch r.Key {
	case kmsg.Metadata, kmsg.FindCoordinator, kmsg.DescribeCluster:
		return true
	case kmsg.Produce, kmsg.Fetch:
		host, _, err := net.SplitHostPort(target)
		return err == nil && bytes.Contains(body, []byte(host))
	default:
		return false
	}
}

// readdress puts the proxy's own address in the place of the target's.
func readdress(r *Request, body []byte, target, own string) ([]byte, error) {
	resp := kmsg.ResponseForKey(int16(r.Key))
	resp.SetVersion(r.Version)
	if err := resp.ReadFrom(body); err != nil {
		return nil, notUnderstood("an answer to %s of version %d: %w", r.Key.Name(), r.Version, err)
	}
	host, portText, err := net.SplitHostPort(own)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseInt(portText, 10, 32)
	if err != nil {
		return nil, err
	}
	var seen []string
	structs(reflect.ValueOf(resp), func(v reflect.Value) {
		h, p := v.FieldByName("Host"), v.FieldByName("Port")
		if !h.IsValid() || !p.IsValid() || h.Kind() != reflect.String || h.String() == "" {
			return
		}
		seen = append(seen, net.JoinHostPort(h.String(), strconv.FormatInt(p.Int(), 10)))
		if seen[len(seen)-1] == target {
			h.SetString(host)
			p.SetInt(port)
		}
	})
	if r.Key == kmsg.Metadata && len(seen) > 0 && !slices.Contains(seen, target) {
		return nil, notUnderstood("the brokers advertise %v and not %s: clients would go around the proxy", seen, target)
	}
	return resp.AppendTo(nil), nil
}
