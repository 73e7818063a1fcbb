package quorate

import (
	"syscall"
	"time"
	"unsafe"
)

const clockBoottime = 7

func boottime() (time.Duration, bool) {
	var reading syscall.Timespec
	_, _, err := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&reading)), 0)
	return time.Duration(reading.Nano()), err == 0
}

func chooseClock() func() time.Duration {
	if _, ok := boottime(); !ok {
		return monotonic // an old kernel, or a sandbox
	}
	return func() time.Duration {
		reading, _ := boottime()
		return reading
	}
}
