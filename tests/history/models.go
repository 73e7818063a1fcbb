package main

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Slots that the semaphore of the model has room for.
const maxSlots = 16

// Input is a call together with its answer: the models only ask whether it may happen.
type Input struct {
	Op     string // also: lost, end (by itself, unasked), proclaim? (which may happen or not)
	Lease  int
	Token  int64
	Shared bool
	Held   bool
	Slots  uint16
	Limit  int
	Value  string
}

func (in Input) String() string {
	text := in.Op
	if in.Lease != 0 {
		text += fmt.Sprintf(" #%d", in.Lease)
	}
	if in.Op == "read" && !in.Held {
		return "read: nobody"
	}
	if in.Shared {
		text += " shared"
	}
	if in.Slots != 0 {
		text += fmt.Sprintf(" slots %b", in.Slots)
	}
	text += fmt.Sprintf(" token %d", in.Token)
	if in.Value != "" {
		text += " value " + in.Value
	}
	return text
}

var models = map[string]porcupine.Model{
	"lock":      model(lock{}),
	"semaphore": model(semaphore{}),
	"election":  model(election{}),
}

// A state says whether a call may happen in it, and which state comes of it.
type state[S any] interface {
	comparable
	step(in Input) (bool, S)
}

func model[S state[S]](first S) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return first },
		Step: func(state, input, _ any) (bool, any) {
			allowed, next := state.(S).step(input.(Input))
			return allowed, next
		},
		DescribeOperation: func(input, _ any) string { return input.(Input).String() },
		DescribeState:     func(state any) string { return fmt.Sprintf("%+v", state) },
	}
}

// A lock: one exclusive holder or any number of shared ones, and tokens that rise. A shared lease's token
// is greater than that of every exclusive lease before it, and smaller than that of every one after it.
type lock struct {
	Writer      int
	WriterToken int64
	Readers     string // "#3#7#": leases
	Exclusive   int64  // the highest token of an exclusive lease, or issued
	Highest     int64
}

func reader(lease int) string { return fmt.Sprintf("%d#", lease) }

func (l lock) has(lease int) bool {
	return l.Writer == lease || strings.Contains("#"+l.Readers, "#"+reader(lease))
}

func (l lock) step(in Input) (bool, lock) {
	switch in.Op {
	case "acquire":
		if in.Shared {
			allowed := l.Writer == 0 && in.Token > l.Exclusive
			l.Readers += reader(in.Lease)
			l.Highest = max(l.Highest, in.Token)
			return allowed, l
		}
		allowed := l.Writer == 0 && l.Readers == "" && in.Token > l.Highest
		return allowed, lock{Writer: in.Lease, WriterToken: in.Token, Exclusive: in.Token, Highest: in.Token}
	case "issue":
		allowed := in.Token > l.Highest
		l.Exclusive, l.Highest = in.Token, in.Token
		return allowed, l
	case "extend":
		return l.has(in.Lease), l
	case "lost":
		return !l.has(in.Lease), l
	case "release", "end":
		if !l.has(in.Lease) {
			return false, l
		}
		if l.Writer == in.Lease {
			l.Writer, l.WriterToken = 0, 0
		} else {
			l.Readers = strings.TrimPrefix(strings.Replace("#"+l.Readers, "#"+reader(in.Lease), "#", 1), "#")
		}
		return true, l
	case "read":
		if !in.Held {
			return l.Writer == 0 && l.Readers == "", l
		}
		return l.WriterToken == in.Token || l.Readers != "", l
	}
	return false, l
}

// A semaphore: as many slots as it has permits, each with one holder and tokens that rise.
type semaphore struct {
	Holders [maxSlots]int
	Tokens  [maxSlots]int64
}

func (s semaphore) has(lease int) bool {
	for _, holder := range s.Holders {
		if holder == lease {
			return true
		}
	}
	return false
}

func (s semaphore) step(in Input) (bool, semaphore) {
	switch in.Op {
	case "acquire":
		if in.Slots == 0 || bits.Len16(in.Slots) > in.Limit {
			return false, s
		}
		for slot := range maxSlots {
			if in.Slots&(1<<slot) == 0 {
				continue
			}
			if s.Holders[slot] != 0 || in.Token <= s.Tokens[slot] {
				return false, s
			}
			s.Holders[slot], s.Tokens[slot] = in.Lease, in.Token
		}
		return true, s
	case "extend":
		return s.has(in.Lease), s
	case "lost":
		return !s.has(in.Lease), s
	case "release", "end":
		allowed := s.has(in.Lease)
		for slot, holder := range s.Holders {
			if holder == in.Lease {
				s.Holders[slot] = 0
			}
		}
		return allowed, s
	}
	return false, s
}

// An election: one leader, terms that rise, and a value that is the last one proclaimed.
type election struct {
	Leader  int
	Term    int64
	Value   string
	Highest int64
}

func (e election) step(in Input) (bool, election) {
	leads := e.Leader == in.Lease
	switch in.Op {
	case "acquire":
		allowed := e.Leader == 0 && in.Token > e.Highest
		return allowed, election{Leader: in.Lease, Term: in.Token, Value: in.Value, Highest: in.Token}
	case "extend":
		return leads && e.Value == in.Value, e
	case "proclaim":
		e.Value = in.Value
		return leads, e
	case "proclaim?":
		// Too late, it is none.
		if leads {
			e.Value = in.Value
		}
		return true, e
	case "lost":
		return !leads, e
	case "release", "end":
		return leads, election{Highest: e.Highest}
	case "read":
		if !in.Held {
			return e.Leader == 0, e
		}
		return e.Leader != 0 && e.Term == in.Token && e.Value == in.Value, e
	}
	return false, e
}
