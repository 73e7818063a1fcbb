package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

func main() {
	pictures := flag.String("pictures", ".", "folder for a picture of each history that is wrong")
	patience := flag.Duration("patience", 2*time.Minute, "how long to look for an order, for each name")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: history [-pictures DIR] [-patience 2m] FILE")
		os.Exit(64)
	}
	if err := judge(flag.Arg(0), *pictures, *patience); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Prints a line for each name, and says what is wrong with the file.
func judge(path, pictures string, patience time.Duration) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	histories, err := Read(file)
	if err != nil {
		return err
	}
	if len(histories) == 0 {
		return fmt.Errorf("%s: no calls", path)
	}
	var wrong []string
	fmt.Printf("%-24s %8s %8s %9s  %s\n", "", "calls", "leases", "unjudged", "verdict")
	for _, history := range histories {
		result := porcupine.CheckOperationsTimeout(history.Model, history.Operations, patience)
		verdict := "linearizable"
		switch result {
		case porcupine.Illegal:
			verdict = "VIOLATION"
			picture := filepath.Join(pictures, strings.NewReplacer(" ", "-", ":", "-").Replace(history.Object)+".html")
			_, info := porcupine.CheckOperationsVerbose(history.Model, history.Operations, patience)
			if err := porcupine.VisualizePath(history.Model, info, picture); err != nil {
				return err
			}
			wrong = append(wrong, fmt.Sprintf("%s: no order of its calls explains their answers: %s", history.Object, picture))
		case porcupine.Unknown:
			verdict = "undecided"
			wrong = append(wrong, fmt.Sprintf("%s: not decided within %v", history.Object, patience))
		}
		fmt.Printf("%-24s %8d %8d %9d  %s\n",
			history.Object, len(history.Operations), history.Leases, history.Unjudged, verdict)
	}
	if wrong != nil {
		return fmt.Errorf("%s", strings.Join(wrong, "\n"))
	}
	return nil
}
