//go:build !linux

package quorate

import "time"

func chooseClock() func() time.Duration {
	return monotonic
}
