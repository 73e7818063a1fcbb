//go:build !linux

package quorate

import "syscall"

func endsWithItsParent() *syscall.SysProcAttr { return nil }
