// Waiting that can be ended by an AbortSignal, and signals that depend on others.

import { builtin } from "./host.js";

const events = builtin<{ setMaxListeners(most: number, ...targets: EventTarget[]): void }>("node:events");

/** Waits, or throws the signal's reason. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const aborted = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", aborted);
      resolve();
    }, Math.max(0, Math.ceil(ms)));
    signal?.addEventListener("abort", aborted, { once: true });
  });
}

/** Waits for work that never fails, but no longer than so many milliseconds. */
export async function within(ms: number, work: Promise<unknown>): Promise<void> {
  const done = new AbortController();
  await Promise.race([work, sleep(ms, done.signal).catch(() => {})]);
  done.abort();
}

/** Resolves when the signal is aborted. */
export function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener("abort", () => resolve(), { once: true });
  });
}

/** Whether an error is how work ended that the signal aborted: Node wraps the reason in an AbortError. */
export function isReason(error: unknown, signal: AbortSignal): boolean {
  if (!signal.aborted) return false;
  return error === signal.reason || (error instanceof Error && error.name === "AbortError" && error.cause === signal.reason);
}

/**
 * A controller that is aborted with any of the signals. `AbortSignal.any` would do, but leaves something
 * behind at a long-lived signal with every use.
 */
export function linked(...signals: Array<AbortSignal | undefined>): { controller: AbortController; unlink: () => void } {
  const controller = new AbortController();
  const undo: Array<() => void> = [];
  for (const signal of signals) {
    if (!signal) continue;
    // A signal for many acquisitions at once is no leak. One of a polyfill is none of Node's.
    if (signal instanceof EventTarget) events?.setMaxListeners(0, signal);
    const abort = () => controller.abort(signal.reason);
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort, { once: true });
    undo.push(() => signal.removeEventListener("abort", abort));
  }
  return { controller, unlink: () => undo.forEach((one) => one()) };
}
