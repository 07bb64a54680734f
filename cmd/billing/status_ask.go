package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"

	"billing/internal/admin"
	"billing/internal/checkpoint"
)

// askMembers asks every member of the group how it is, side by side.
func askMembers(ctx context.Context, s *seen) {
	var all sync.WaitGroup
	for i := range s.members {
		m := &s.members[i]
		if m.AdminAddr == "" {
			m.why = "the group does not say where its admin port is: it is of an older build, or no instance of this service"
			continue
		}
		all.Go(func() {
			said, err := askInstance(ctx, m.AdminAddr)
			switch {
			case err != nil:
				m.why = fmt.Sprintf("no answer at %s: %v", m.AdminAddr, err)
			case said.Job != s.job || said.Member != m.ID:
				m.why = fmt.Sprintf("at %s another process answers: of job %q, member %q", m.AdminAddr, said.Job, said.Member)
			default:
				m.said = said
			}
		})
	}
	all.Wait()
}

// maxAnswer bounds what is read of an instance, whoever it is.
const maxAnswer = 16 << 20

// askInstance asks the admin port at an address for /status.
func askInstance(ctx context.Context, addr string) (*admin.Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/status", nil)
	if err != nil {
		return nil, fmt.Errorf("ask: %w", err)
	}
	client := &http.Client{
		// A proxy of the environment has no business between us and an instance.
		Transport:     &http.Transport{Proxy: nil, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err // the address is said anyway
	}
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what was done
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET /status: %s", resp.Status)
	}
	said := new(admin.Instance)
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(said); err != nil {
		return nil, fmt.Errorf("GET /status: no answer of this service: %w", err)
	}
	return said, nil
}

// Words for a lane of which no instance says how it is.
const (
	stateUnowned     = "unowned"     // the group has given it to nobody
	stateNotAsked    = "not asked"   // its owner can't be asked
	stateAssigned    = "assigned"    // its owner does not work on it yet, or no more
	stateRebalancing = "rebalancing" // the group is giving lanes away
	stateUnknown     = "unknown"     // the group can't be asked
)

// word is who has a lane, and how it is.
type word struct {
	member *memberSeen         // nil where nobody is known to have it
	said   *admin.InstanceLane // nil where no instance says how it is
	state  string
}

// owner finds out who has a lane: by the group, which gives lanes away, and in a
// rebalance, in which the group shows nothing, by the instances themselves.
func (s *seen) owner(partition int32) word {
	rebalance := s.group != "Stable" && len(s.members) > 0
	var w word
	for i := range s.members {
		m := &s.members[i]
		said := m.lane(checkpoint.Lane{Topic: s.topic, Partition: partition})
		switch {
		case slices.Contains(m.Lanes, partition):
			w.member, w.said = m, said
		case rebalance && said != nil && (w.said == nil || said.Incarnation > w.said.Incarnation):
			w.member, w.said = m, said
		}
	}
	switch {
	case w.said != nil:
		w.state = w.said.State
	case s.group == "":
		w.state = stateUnknown
	case rebalance:
		w.state = stateRebalancing
	case w.member == nil:
		w.state = stateUnowned
	case w.member.said == nil:
		w.state = stateNotAsked
	default:
		w.state = stateAssigned
	}
	return w
}

// lane is what the member itself says of a lane; nil for nothing.
func (m *memberSeen) lane(id checkpoint.Lane) *admin.InstanceLane {
	if m.said == nil {
		return nil
	}
	for i := range m.said.Lanes {
		if m.said.Lanes[i].Lane.Lane == id.String() {
			return &m.said.Lanes[i]
		}
	}
	return nil
}
