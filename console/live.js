// What stays live: values that are asked for again and again, and the clock.

import { useEffect, useReducer, useRef, useState } from './vendor/preact-htm.js';

/**
 * Asks `load(signal)` now and every `every_ms` while the page is visible: `{value, error, at, again}`. Slow answers make
 * it ask less often, so that the console takes at most a fifth of the server's time for such a call. The value before
 * stays while a newer one is on its way, and when one fails.
 */
export function useLive(load, every_ms, changes) {
  const [state, setState] = useState({});
  const wake = useRef(() => {});
  useEffect(() => {
    const control = new AbortController();
    let timer;
    let running = false;
    let asked = false;
    const run = async () => {
      clearTimeout(timer);
      if (running) {
        asked = true;
        return;
      }
      running = true;
      const begun = performance.now();
      try {
        const value = await load(control.signal);
        setState({ value, at: performance.now() });
      } catch (error) {
        if (control.signal.aborted) return;
        setState((before) => ({ ...before, error }));
      }
      running = false;
      if (control.signal.aborted) return;
      const pause = asked ? 0 : Math.max(every_ms, 4 * (performance.now() - begun));
      asked = false;
      if (!document.hidden) timer = setTimeout(run, pause);
    };
    const visible = () => document.hidden || run();
    wake.current = run;
    document.addEventListener('visibilitychange', visible);
    setState({});
    run();
    return () => {
      control.abort();
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', visible);
    };
  }, changes);
  return { ...state, again: () => wake.current() };
}

/** Renders anew four times a second, for countdowns; the monotonic clock, ms. */
export function useNow() {
  const [, tick] = useReducer((n) => n + 1, 0);
  useEffect(() => {
    const timer = setInterval(tick, 250);
    return () => clearInterval(timer);
  }, []);
  return performance.now();
}

/** What is left now of `remaining_ms` that was read at `at`. */
export const left = (remaining_ms, at, now) =>
  remaining_ms === undefined ? undefined : Math.max(0, remaining_ms - (now - at));
