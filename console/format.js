// How values are written for people.

/** A duration: `340 ms`, `4.2 s`, `3 min 10 s`, `2 h 5 min`. */
export function duration(ms) {
  if (ms === undefined || ms === null || Number.isNaN(ms)) return '';
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  const two = (great, unit, small, smallUnit) => (small ? `${great} ${unit} ${small} ${smallUnit}` : `${great} ${unit}`);
  if (minutes < 60) return two(minutes, 'min', Math.floor(seconds % 60), 's');
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return two(hours, 'h', minutes % 60, 'min');
  return two(Math.floor(hours / 24), 'd', hours % 24, 'h');
}

/** The time of the day. */
export const time = (at) => new Date(at).toLocaleTimeString();

/**
 * Outside text with its control and direction characters made visible: they could make a name read as another one.
 */
export const plain = (value) =>
  String(value).replace(
    /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (c) => `\u27e8U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}\u27e9`,
  );

export const count = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;

/** A JSON body as one word of a POSIX shell. */
export const shellWord = (value) => `'${value.replaceAll("'", "'\\''")}'`;
