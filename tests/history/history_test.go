package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Small histories, told in one line a call:
//
//	op lease asked answered [outcome] key=value…
//
// `until` is 1000 unless it is given.
func told(kind string, lines ...string) string {
	var file strings.Builder
	for _, line := range lines {
		words := strings.Fields(line)
		text := `{"client":0,"kind":"` + kind + `","name":"n","op":"` + words[0] + `","asked_us":` + words[2] +
			`,"answered_us":` + words[3]
		if words[1] != "-" {
			text += `,"lease":"` + words[1] + `"`
		}
		fields := map[string]string{"outcome": `"ok"`, "until_us": "1000", "limit": "2"}
		for _, word := range words[4:] {
			key, value, pair := strings.Cut(word, "=")
			if !pair {
				key, value = "outcome", `"`+word+`"`
			}
			fields[key] = value
		}
		for key, value := range fields {
			text += `,"` + key + `":` + value
		}
		file.WriteString(text + "}\n")
	}
	return file.String()
}

func verdict(t *testing.T, history string) error {
	t.Helper()
	folder := t.TempDir()
	path := filepath.Join(folder, "history.jsonl")
	if err := os.WriteFile(path, []byte(history), 0o600); err != nil {
		t.Fatal(err)
	}
	err := judge(path, folder, time.Minute)
	if err != nil && strings.Contains(err.Error(), "no order") {
		if pictures, _ := filepath.Glob(filepath.Join(folder, "*.html")); len(pictures) != 1 {
			t.Errorf("%d pictures of a wrong history", len(pictures))
		}
	} else if err != nil {
		t.Errorf("not judged: %v", err)
	}
	return err
}

func TestAHistoryThatHasAnOrderIsAccepted(t *testing.T) {
	for name, history := range map[string]string{
		"one after the other": told("lock",
			"acquire a 0 10 token=5", "release a 20 30 token=5", "acquire b 40 50 token=6"),
		"a lease ends by itself once its holder was to stop": told("lock",
			"acquire a 0 10 token=5 until_us=100", "acquire b 90 101 token=6 until_us=200"),
		"two at once, either order": told("lock",
			"acquire a 0 50 token=6", "release a 52 60 token=6", "acquire b 5 70 token=7", "issue - 1 9 token=5"),
		"a release without an answer ends the lease at any time": told("lock",
			"acquire a 0 10 token=5", "release a 20 30 unknown token=5 until_us=20", "acquire b 40 50 token=6"),
		"a release that finds a copy of a lease that has ended": told("lock",
			"acquire a 0 10 token=5 until_us=20", "acquire b 25 30 token=6", "release a 40 50 token=5"),
		"a release that finds nothing of a lease that has ended": told("lock",
			"acquire a 0 10 token=5 until_us=25", "release a 20 30 lost token=5", "acquire b 40 50 token=6"),
		"an acquire without an answer is nothing, or all but nothing": told("lock",
			"acquire a 0 10 unknown token=9", "acquire b 20 30 token=5"),
		"lost after its end": told("lock",
			"acquire a 0 10 token=5 until_us=100", "extend a 90 110 lost token=5", "read - 120 130 held=false"),
		"a read of what is being undone is not judged": told("lock",
			"read - 0 5 held=true token=3", "acquire a 10 20 token=5", "read - 30 40 held=true token=5"),
		"readers together, a writer after them": told("lock",
			`acquire a 0 10 token=5 mode="shared"`, `acquire b 0 10 token=5 mode="shared"`,
			"release a 20 30 token=5", "release b 30 40 token=5", "acquire c 50 60 token=6"),
		"as many as there are permits": told("semaphore",
			"acquire a 0 10 token=5 slots=[0]", "acquire b 20 30 token=6 slots=[1]", "release a 40 50 token=5",
			"acquire c 60 70 token=7 slots=[0]"),
		"a value that was proclaimed is read": told("election",
			`acquire a 0 10 token=5 value="x"`, `read - 20 30 held=true token=5 value="x"`,
			`proclaim a 40 50 token=5 value="y"`, `read - 60 70 held=true token=5 value="y"`,
			`extend a 80 90 token=5 value="y"`),
		"a proclaim without an answer is seen late": told("election",
			`acquire a 0 10 token=5 value="x"`, `proclaim a 20 30 unknown token=5 value="y"`,
			`read - 40 50 held=true token=5 value="x"`, `read - 60 70 held=true token=5 value="y"`),
		"or never": told("election",
			`acquire a 0 10 token=5 value="x"`, `proclaim a 20 30 unknown token=5 value="y"`,
			`read - 40 50 held=true token=5 value="x"`, `release a 60 70 token=5`, `read - 80 90 held=false`),
	} {
		t.Run(name, func(t *testing.T) {
			if err := verdict(t, history); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAHistoryWithoutAnOrderIsRejected(t *testing.T) {
	for name, history := range map[string]string{
		"granted to two at once": told("lock",
			"acquire a 0 10 token=5", "acquire b 20 30 token=6"),
		"granted to two at once, the first extended": told("lock",
			"acquire a 0 10 token=5 until_us=100", "extend a 80 90 token=5 until_us=200",
			"acquire b 95 150 token=6"),
		"a token that goes back": told("lock",
			"acquire a 0 10 token=6", "release a 20 30 token=6", "acquire b 40 50 token=5"),
		"a token twice": told("lock",
			"acquire a 0 10 token=6", "release a 20 30 token=6", "acquire b 40 50 token=6"),
		"an issued token that goes back": told("lock",
			"acquire a 0 10 token=6", "issue - 20 30 token=5"),
		"a waiter's token older than the last holder's": told("lock",
			"acquire a 10 20 token=6", "acquire b 0 60 token=5 until_us=2000", "release a 40 50 token=6",
			"read - 70 80 held=true token=5"),
		"lost before its end": told("lock",
			"acquire a 0 10 token=5 until_us=100", "extend a 20 30 lost token=5"),
		"a release of a lease that was valid until after the next one": told("lock",
			"acquire a 0 10 token=5 until_us=35", "acquire b 25 30 token=6", "release a 40 50 token=5"),
		"a release that finds nothing of a lease that is valid": told("lock",
			"acquire a 0 10 token=5 until_us=100", "release a 20 30 lost token=5", "acquire b 40 50 token=6"),
		"extended after another had it": told("lock",
			"acquire a 0 10 token=5 until_us=20", "acquire b 30 40 token=6", "extend a 50 60 token=5"),
		"a free lock that is held": told("lock",
			"acquire a 0 10 token=5", "read - 20 30 held=false"),
		"the holder before the last": told("lock",
			"acquire a 0 10 token=5", "release a 20 30 token=5", "acquire b 40 50 token=6",
			"read - 60 70 held=true token=5"),
		"a reader beside a writer": told("lock",
			"acquire a 0 10 token=5", `acquire b 20 30 token=6 mode="shared"`),
		"a writer beside a reader": told("lock",
			`acquire a 0 10 token=5 mode="shared"`, "acquire b 20 30 token=6"),
		"a reader's token below a writer's before it": told("lock",
			"acquire a 0 10 token=6", "release a 20 30 token=6", `acquire b 40 50 token=5 mode="shared"`),
		"a writer's token not above a reader's before it": told("lock",
			`acquire a 0 10 token=6 mode="shared"`, "release a 20 30 token=6", "acquire b 40 50 token=6"),
		"more than there are permits": told("semaphore",
			"acquire a 0 10 token=5 slots=[0]", "acquire b 20 30 token=6 slots=[1]",
			"acquire c 40 50 token=7 slots=[2]"),
		"one slot twice": told("semaphore",
			"acquire a 0 10 token=5 slots=[0]", "acquire b 20 30 token=6 slots=[0]"),
		"a slot's token that goes back": told("semaphore",
			"acquire a 0 10 token=6 slots=[0,1]", "release a 20 30 token=6", "acquire b 40 50 token=5 slots=[1]"),
		"two leaders": told("election",
			`acquire a 0 10 token=5 value="x"`, `acquire b 20 30 token=6 value="y"`),
		"a proclaim that is lost": told("election",
			`acquire a 0 10 token=5 value="x"`, `proclaim a 20 30 token=5 value="y"`,
			`read - 40 50 held=true token=5 value="x"`),
		"a proclaim that an extension undoes": told("election",
			`acquire a 0 10 token=5 value="x"`, `proclaim a 20 30 token=5 value="y"`,
			`extend a 40 50 token=5 value="x"`),
		"a proclaim without an answer that is seen and taken back": told("election",
			`acquire a 0 10 token=5 value="x"`, `proclaim a 20 30 unknown token=5 value="y"`,
			`read - 40 50 held=true token=5 value="y"`, `read - 60 70 held=true token=5 value="x"`),
	} {
		t.Run(name, func(t *testing.T) {
			if err := verdict(t, history); err == nil {
				t.Error("accepted")
			}
		})
	}
}
