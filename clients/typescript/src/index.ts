export type * from "./api.js";
export { Client, type ClientOptions } from "./client.js";
export {
  ForbiddenError, InvalidRequestError, LeaseLostError, NotAcquiredError, QuorateError, StaleTokenError, UnavailableError,
} from "./errors.js";
export { idempotent, leader, singleton, tryWithLock, withLock, withLocks, type LeaderHooks, type Once, type Tried } from "./helpers.js";
export type { Answer as LeaseAnswer } from "./held.js";
export { Leadership, Lease, type Body } from "./lease.js";
export type { AcquireOptions, CampaignOptions, LockOptions, RateLimitOptions, SemaphoreOptions } from "./options.js";
export type { Fetch } from "./servers.js";
