package quorate

import (
	"math"
	"time"
)

// never is a moment that does not come, and a length without an end.
const never = time.Duration(math.MaxInt64)

// now reads a monotonic clock, which counts the time in suspend where the system has such a clock: else a lease would
// seem valid after a long sleep of the machine. Only the distance of two readings means something.
var now = chooseClock()

var started = time.Now()

func monotonic() time.Duration {
	return time.Since(started)
}

// after returns the moment that is so far away.
func after(length time.Duration) time.Duration {
	if length == never {
		return never
	}
	return now() + length
}
