// Observing by long polls: the present state, then each that has another revision.

import { QuorateError, UnavailableError } from "./errors.js";
import type { Piece } from "./servers.js";
import { sleep } from "./signals.js";

const FIRST_DELAY_MS = 100;
const LAST_DELAY_MS = 2_000;

export async function* observe<State extends { revision: string }>(
  read: (query: string, waitMs: number) => Promise<State>,
  piece: Piece,
  signal: AbortSignal | undefined,
): AsyncGenerator<State, void, void> {
  let revision: string | undefined;
  let delay = FIRST_DELAY_MS;
  for (;;) {
    const waitMs = revision === undefined ? 0 : piece.ms;
    let state: State;
    try {
      state = await read(revision === undefined ? "" : `?after=${encodeURIComponent(revision)}&wait_ms=${waitMs}`, waitMs);
      delay = FIRST_DELAY_MS;
    } catch (error) {
      if (signal?.aborted || !(error instanceof QuorateError)) throw error;
      if (piece.shorten(error, waitMs)) continue;
      if (!(error instanceof UnavailableError)) throw error;
      await sleep((error.retryAfterMs ?? delay) * (1 + Math.random() / 2), signal);
      delay = Math.min(LAST_DELAY_MS, 2 * delay);
      continue;
    }
    if (state.revision === revision) continue;
    revision = state.revision;
    yield state;
  }
}
