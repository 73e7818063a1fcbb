// Judges a recorded history of calls with Porcupine: is there one order of all calls, each between
// its beginning and its end, in which every answer is the right one?
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"sort"

	"github.com/anishathalye/porcupine"
)

// Call is a line of the file: what a client asked for, and what it was told. Times are microseconds
// since the beginning of the run.
type Call struct {
	Client     int     `json:"client"`
	Kind       string  `json:"kind"` // lock, semaphore, election
	Name       string  `json:"name"`
	Op         string  `json:"op"` // acquire, extend, proclaim, release, issue, read
	AskedUs    int64   `json:"asked_us"`
	AnsweredUs int64   `json:"answered_us"`
	Outcome    string  `json:"outcome"`  // ok, lost (the lease is not held any more), unknown
	Lease      string  `json:"lease"`    // which lease; empty for issue and read
	UntilUs    int64   `json:"until_us"` // the holder relies on it until then
	Token      *int64  `json:"token"`
	Mode       string  `json:"mode"` // of a lock: exclusive, which is the default, or shared
	Slots      []int   `json:"slots"`
	Limit      int     `json:"limit"`
	Value      *string `json:"value"`
	Held       bool    `json:"held"` // what a read saw
}

// History is what one name went through.
type History struct {
	Object     string // kind and name
	Model      porcupine.Model
	Operations []porcupine.Operation
	Leases     int
	// Reads that saw a lease of which no client was told: an attempt that is being undone. A client that
	// got no answer may have had it for a moment, so there is nothing to hold such a read against.
	Unjudged int
}

// Read reads a file of calls, and makes a history for each name.
func Read(from io.Reader) ([]History, error) {
	calls := map[string][]Call{}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for number := 1; lines.Scan(); number++ {
		var call Call
		if err := json.Unmarshal(lines.Bytes(), &call); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		object := call.Kind + " " + call.Name
		calls[object] = append(calls[object], call)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	var histories []History
	for object, calls := range calls {
		history, err := judgeable(object, calls)
		if err != nil {
			return nil, err
		}
		histories = append(histories, history)
	}
	sort.Slice(histories, func(i, j int) bool { return histories[i].Object < histories[j].Object })
	return histories, nil
}

// Leases end by a release, or else by themselves at some time after their holder was to stop.
type ending struct {
	client  int
	token   int64
	untilUs int64
}

func judgeable(object string, calls []Call) (History, error) {
	model, known := models[calls[0].Kind]
	if !known {
		return History{}, fmt.Errorf("%s: no model of this kind", object)
	}
	history := History{Object: object, Model: model}
	leases, endings, granted := map[string]int{}, map[int]ending{}, map[int64]bool{}
	for _, call := range calls {
		if call.Op == "acquire" && call.Outcome == "ok" && call.Token != nil {
			granted[*call.Token] = true
		}
	}
	add := func(client int, input Input, call, end int64) {
		history.Operations = append(history.Operations, porcupine.Operation{
			ClientId: client, Input: input, Call: call, Return: end,
		})
	}
	for _, call := range calls {
		input := Input{Op: call.Op, Shared: call.Mode == "shared", Held: call.Held, Limit: call.Limit}
		if call.Token != nil {
			input.Token = *call.Token
		}
		if call.Value != nil {
			input.Value = *call.Value
		}
		for _, slot := range call.Slots {
			if slot < 0 || slot >= maxSlots {
				return History{}, fmt.Errorf("%s: slot %d, the model has %d", object, slot, maxSlots)
			}
			input.Slots |= 1 << slot
		}
		if call.Lease != "" {
			if _, seen := leases[call.Lease]; !seen {
				leases[call.Lease] = len(leases) + 1
			}
			input.Lease = leases[call.Lease]
		}
		end := call.AnsweredUs
		switch {
		case call.Op == "read":
			if call.Held && (call.Token == nil || !granted[input.Token]) {
				history.Unjudged++
				continue
			}
		case call.Op == "issue":
		case call.Outcome == "lost":
			input.Op = "lost"
		case call.Outcome == "unknown" && call.Op == "proclaim":
			// May be seen from now on at any time, or never.
			input.Op, end = "proclaim?", math.MaxInt64
		case call.Outcome == "unknown" && call.Op == "acquire":
			// One that may have been granted, with a token of which nobody was told, and may have ended at
			// once, allows just what none at all allows.
			continue
		case call.Outcome == "unknown" && call.Op == "release":
			endings[input.Lease] = ending{call.Client, input.Token, call.UntilUs}
			continue
		case call.Outcome == "unknown":
			continue
		case call.Op == "release":
			// One that had ended by itself may be found where an extension came late, and others may have had it meanwhile.
			if before, held := endings[input.Lease]; held && before.untilUs < call.AnsweredUs {
				input.Op, call.AskedUs = "end", min(before.untilUs, call.AskedUs)
			}
			delete(endings, input.Lease)
		default:
			endings[input.Lease] = ending{call.Client, input.Token, call.UntilUs}
		}
		add(call.Client, input, call.AskedUs, end)
	}
	for lease, ending := range endings {
		add(ending.client, Input{Op: "end", Lease: lease, Token: ending.token}, ending.untilUs, math.MaxInt64)
	}
	history.Leases = len(leases)
	bounded(history.Operations)
	return history, nil
}

// Gives the operations without an end the end of the history, so that a picture of it has one too.
func bounded(operations []porcupine.Operation) {
	var last int64
	for _, operation := range operations {
		last = max(last, operation.Call)
		if operation.Return != math.MaxInt64 {
			last = max(last, operation.Return)
		}
	}
	for i := range operations {
		if operations[i].Return == math.MaxInt64 {
			operations[i].Return = last + 1
		}
	}
}
