package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestPackageAPIIsThatOfTheDocument(t *testing.T) {
	files, err := generate(filepath.Join("../..", documentFile))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		written, err := os.ReadFile(filepath.Join("../../api", name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(written, content) {
			t.Errorf("api/%s is not what the OpenAPI document says; run go run ./internal/generate", name)
		}
	}
}
