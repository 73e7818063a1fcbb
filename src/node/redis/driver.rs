//! One connection at work: everything queued becomes one write, every reply
//! read goes to the call that stands first.
//!
//! It is one task and one hand-written poll, because each task between a caller
//! and the socket costs a wake-up per batch, and each wake-up a queue, a lock
//! and perhaps another thread.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use super::pool::{Stream, put_info, read_identity};
use super::queue::{Job, Queue};
use super::resp::{self, As, BatchHead, Reply, ScriptBytes};
use crate::node::{Call, Identity, NodeError, Script, Value};

/// Calls written before the socket is looked at again.
const WRITE_MAX: usize = 512;

/// Calls in one run of a script, and their keys: a node does nothing else meanwhile.
const BATCH_CALLS_MAX: usize = 64;
const BATCH_KEYS_MAX: usize = 512;

/// When to look again at a socket with replies that the event loop has not come to.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Room for replies, to begin with and again after a large one.
const READ_BYTES: usize = 64 << 10;

/// The buffer of requests is given back beyond this.
const WRITE_BYTES_KEPT: usize = 1 << 20;

/// What the reply at the head of the stream is for.
enum Sent {
    /// A call whose script runs for it alone. Where that was sent by text already, a second
    /// `NOSCRIPT` is answered as it is.
    Call(Call, As),
    /// The head of a batch of so many calls, which come next.
    Batch(usize, As),
    /// A call of the batch above.
    Part(Call),
    /// The answer came too late and goes nowhere.
    TimedOut,
    /// One of the replies to `SCRIPT LOAD`; whether it is the last.
    Loaded(bool),
    /// A part of `INFO`; the last one answers.
    Info(Option<oneshot::Sender<Result<Identity, NodeError>>>),
}

struct Waiting {
    sent: Sent,
    since: Instant,
}

pub(super) struct Driver<'a> {
    stream: &'a mut Stream,
    queue: &'a Queue,
    scripts: &'a ScriptBytes,
    /// `run_id`s that this node had on earlier connections.
    former: &'a [String],
    node_timeout: Duration,

    taken: VecDeque<Job>,
    /// Taken, and not written yet, so that it may be one batch.
    batch: Vec<Call>,
    waiting: VecDeque<Waiting>,
    /// The node's clock, ms, when it ran the batch whose replies are being read.
    batch_ms: u64,
    /// How many at the front of `waiting` have timed out.
    late: usize,
    /// The parts of `INFO` so far, or what was wrong with one.
    info: Result<String, NodeError>,
    loading: bool,
    /// Something waits in the queue and is left to gather company.
    gathering: bool,

    output: Vec<u8>,
    written: usize,
    input: Vec<u8>,
    filled: usize,

    last_read: Instant,
    timer: Pin<Box<Sleep>>,
    timer_set: bool,
}

impl<'a> Driver<'a> {
    pub(super) fn new(
        stream: &'a mut Stream,
        queue: &'a Queue,
        scripts: &'a ScriptBytes,
        former: &'a [String],
        node_timeout: Duration,
    ) -> Self {
        Self {
            stream,
            queue,
            scripts,
            former,
            node_timeout,
            taken: VecDeque::new(),
            batch: Vec::new(),
            waiting: VecDeque::new(),
            batch_ms: 0,
            late: 0,
            info: Ok(String::new()),
            loading: false,
            gathering: false,
            output: Vec::new(),
            written: 0,
            input: vec![0; READ_BYTES],
            filled: 0,
            last_read: Instant::now(),
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            timer_set: false,
        }
    }

    /// Works until the connection is of no use any more, answers all that it owes, and says why.
    pub(super) async fn run(mut self) -> Arc<str> {
        let reason = poll_fn(|cx| self.poll(cx)).await;
        let error = NodeError::Connection(reason.clone());
        // First shut, then answer: what comes in between finds the door closed.
        let queued = self.queue.shut(error.clone());
        for waiting in self.waiting.drain(..) {
            match waiting.sent {
                Sent::Call(call, _) | Sent::Part(call) => call.reply.send(Err(error.clone())),
                Sent::Info(Some(to)) => drop(to.send(Err(error.clone()))),
                Sent::Info(None) | Sent::Batch(..) | Sent::TimedOut | Sent::Loaded(_) => {}
            }
        }
        for job in self.taken.drain(..).chain(queued) {
            job.refuse(error.clone());
        }
        reason
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Arc<str>> {
        loop {
            if let Err(reason) = self.read(cx) {
                return Poll::Ready(reason);
            }
            let more = self.fetch(cx);
            if let Err(reason) = self.write(cx) {
                return Poll::Ready(reason);
            }
            if let Err(reason) = self.look_at_the_time(cx) {
                return Poll::Ready(reason);
            }
            if !more {
                return Poll::Pending;
            }
        }
    }

    /// Reads until the socket is empty, and answers.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<(), Arc<str>> {
        loop {
            if self.filled == self.input.len() {
                // A reply larger than the buffer.
                self.input.resize(self.input.len() * 2, 0);
            }
            let mut buffer = ReadBuf::new(&mut self.input[self.filled..]);
            match Pin::new(&mut *self.stream).poll_read(cx, &mut buffer) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Err(error)) => return Err(error.to_string().into()),
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => return Err("closed by the node".into()),
                Poll::Ready(Ok(())) => self.filled += buffer.filled().len(),
            }
            self.last_read = Instant::now();
            self.answer()?;
        }
    }

    fn answer(&mut self) -> Result<(), Arc<str>> {
        let input = std::mem::take(&mut self.input);
        let mut used = 0;
        let outcome = loop {
            match self.answer_one(&input[used..self.filled]) {
                Ok(0) => break Ok(()),
                Ok(length) => used += length,
                Err(reason) => break Err(reason),
            }
        };
        self.input = input;
        if used == self.filled {
            self.filled = 0;
            if self.input.len() > READ_BYTES {
                self.input = vec![0; READ_BYTES];
            }
        } else if used > 0 {
            self.input.copy_within(used..self.filled, 0);
            self.filled -= used;
        }
        outcome
    }

    /// Answers with the reply at the front of `input`; its length, or 0 where it is not whole yet.
    fn answer_one(&mut self, input: &[u8]) -> Result<usize, Arc<str>> {
        let malformed = |error: resp::Malformed| Arc::from(error.to_string());
        if let Some(Waiting { sent: Sent::Batch(calls, sent), .. }) = self.waiting.front() {
            let (calls, sent) = (*calls, *sent);
            let Some((head, length)) = resp::parse_batch(input, calls).map_err(malformed)? else {
                return Ok(0);
            };
            self.pop_waiting();
            match head {
                BatchHead::Replies(now_ms) => self.batch_ms = now_ms,
                BatchHead::AllDone(now_ms) => self.accept_batch(calls, now_ms),
                BatchHead::Error(error) => self.refuse_batch(calls, sent, &error),
            }
            return Ok(length);
        }
        let Some((reply, length)) = resp::parse(input).map_err(malformed)? else { return Ok(0) };
        let Some(waiting) = self.pop_waiting() else {
            return Err("protocol error: a reply that nobody asked for".into());
        };
        match waiting.sent {
            Sent::Part(call) => call.reply.send_part(self.last_read, self.batch_ms, read_value(reply)),
            Sent::Call(call, sent) => match reply {
                Reply::Error(error) if sent == As::Hash && error.starts_with("NOSCRIPT") => {
                    self.load();
                    self.scripts.put(&call, As::Text, &mut self.output);
                    self.wait_for(Sent::Call(call, As::Text));
                }
                reply => call.reply.send(read_value(reply)),
            },
            // Heads of batches were read above.
            Sent::TimedOut | Sent::Batch(..) => {}
            Sent::Loaded(last) => self.loading &= !last,
            Sent::Info(to) => {
                match (&mut self.info, read_value(reply)) {
                    (Ok(info), Ok(Value::Text(part))) => info.push_str(&part),
                    (Ok(_), Ok(_)) => self.info = Err(NodeError::Nonsense),
                    (Ok(_), Err(error)) => self.info = Err(error),
                    (Err(_), _) => {}
                }
                if let Some(to) = to {
                    let info = std::mem::replace(&mut self.info, Ok(String::new()));
                    let identity = info.and_then(|info| read_identity(&info).ok_or(NodeError::Nonsense));
                    drop(to.send(identity));
                }
            }
        }
        Ok(length)
    }

    fn pop_waiting(&mut self) -> Option<Waiting> {
        self.late = self.late.saturating_sub(1);
        self.waiting.pop_front()
    }

    fn wait_for(&mut self, sent: Sent) {
        self.waiting.push_back(Waiting { sent, since: Instant::now() });
    }

    /// The node has forgotten its scripts (`SCRIPT FLUSH`), so what it says that of did not run.
    /// It is sent once more by the caller, behind others that were submitted after it: where such
    /// a one was the release of the same lease, its tombstone is there by now.
    fn load(&mut self) {
        if !self.loading {
            self.loading = true;
            self.scripts.put_load(&mut self.output);
            let last = Script::texts().count() - 1;
            for i in 0..=last {
                self.wait_for(Sent::Loaded(i == last));
            }
        }
    }

    /// The node has done all of the `calls` that stand first.
    fn accept_batch(&mut self, calls: usize, now_ms: u64) {
        for _ in 0..calls {
            if let Some(Waiting { sent: Sent::Part(call), .. }) = self.pop_waiting() {
                call.reply.send_part(self.last_read, now_ms, Ok(Value::Int(1)));
            }
        }
    }

    /// The node ran none of the `calls` that stand first.
    fn refuse_batch(&mut self, calls: usize, sent: As, error: &str) {
        let unknown = sent == As::Hash && error.starts_with("NOSCRIPT");
        let error: Arc<str> = error.into();
        let mut again = Vec::new();
        for _ in 0..calls {
            match self.pop_waiting().map(|waiting| waiting.sent) {
                Some(Sent::Part(call)) if unknown => again.push(call),
                Some(Sent::Part(call)) => call.reply.send(Err(NodeError::Redis(Arc::clone(&error)))),
                // Timed out.
                _ => {}
            }
        }
        if !again.is_empty() {
            self.load();
            self.send_batch(&mut again, As::Text);
        }
    }

    fn send_batch(&mut self, calls: &mut Vec<Call>, sent: As) {
        if calls.is_empty() {
            return;
        }
        self.scripts.put_batch(calls, sent, &mut self.output);
        let since = Instant::now();
        self.waiting.push_back(Waiting { sent: Sent::Batch(calls.len(), sent), since });
        self.waiting.extend(calls.drain(..).map(|call| Waiting { sent: Sent::Part(call), since }));
    }

    /// Writes the queued calls into the buffer; says whether there are more of them.
    fn fetch(&mut self, cx: &mut Context<'_>) -> bool {
        if self.taken.is_empty() {
            if self.queue.poll_some(self.waiting.len(), cx).is_pending() {
                return false;
            }
            if !self.gathering {
                // The callers whose answers have just been read run after this and before the
                // next poll, and submit: one write for all of them instead of one each.
                self.gathering = true;
                let _ = pin!(tokio::task::yield_now()).poll(cx);
                return false;
            }
            self.queue.take(&mut self.taken);
        }
        self.gathering = false;
        let since = Instant::now();
        let mut batch = std::mem::take(&mut self.batch);
        let mut keys = 0;
        let count = self.taken.len().min(WRITE_MAX);
        for _ in 0..count {
            let Some(job) = self.taken.pop_front() else { break };
            match job {
                Job::Call(call) if call.is_stale(self.former) => call.reply.send(Err(NodeError::Unmarked)),
                Job::Call(call) if call.command.script.is_batched() => {
                    let more = call.command.keys().len();
                    if batch.len() == BATCH_CALLS_MAX || keys + more > BATCH_KEYS_MAX || !joins(&call, &batch)
                    {
                        self.send_batch(&mut batch, As::Hash);
                        keys = 0;
                    }
                    keys += more;
                    batch.push(call);
                }
                Job::Call(call) => {
                    self.send_batch(&mut batch, As::Hash);
                    self.scripts.put(&call, As::Hash, &mut self.output);
                    self.waiting.push_back(Waiting { sent: Sent::Call(call, As::Hash), since });
                }
                Job::Identify(to) => {
                    self.send_batch(&mut batch, As::Hash);
                    let parts = put_info(&mut self.output);
                    self.waiting.extend((1..parts).map(|_| Waiting { sent: Sent::Info(None), since }));
                    self.waiting.push_back(Waiting { sent: Sent::Info(Some(to)), since });
                }
            }
        }
        self.send_batch(&mut batch, As::Hash);
        self.batch = batch;
        // Not the end yet: only an empty queue registers who is to be woken by the next call.
        true
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), Arc<str>> {
        while self.written < self.output.len() {
            let rest = &self.output[self.written..];
            match Pin::new(&mut *self.stream).poll_write(cx, rest) {
                Poll::Pending => {
                    // Under a steady load all of it never is. Moved only where less is left than was written,
                    // so that in all no more is moved than written.
                    if self.written > self.output.len() / 2 {
                        self.output.drain(..self.written);
                        self.written = 0;
                    }
                    return Ok(());
                }
                Poll::Ready(Ok(0)) => return Err("closed by the node".into()),
                Poll::Ready(Ok(length)) => self.written += length,
                Poll::Ready(Err(error)) => return Err(error.to_string().into()),
            }
        }
        if self.written > 0 {
            self.written = 0;
            self.output.clear();
            self.output.shrink_to(WRITE_BYTES_KEPT);
        }
        match Pin::new(&mut *self.stream).poll_flush(cx) {
            Poll::Ready(Err(error)) => Err(error.to_string().into()),
            Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
        }
    }

    /// One timer for everything in flight. It is left alone while answers come in, and finds out
    /// when it fires what has become of what it was set for.
    fn look_at_the_time(&mut self, cx: &mut Context<'_>) -> Result<(), Arc<str>> {
        loop {
            if !self.timer_set {
                let Some(next) = self.next_deadline() else { return Ok(()) };
                self.timer.as_mut().reset(next);
                self.timer_set = true;
            }
            match self.timer.as_mut().poll(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(()) => self.timer_set = false,
            }
            if self.stream.has_unread() {
                // It is this server that is late: the event loop looks after few sockets a turn, and
                // has not come to this one. What is there was sent in time, as far as anybody knows.
                self.timer.as_mut().reset(Instant::now() + LOOK_AGAIN);
                self.timer_set = true;
                continue;
            }
            self.give_up_on_the_late(Instant::now())?;
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let timeout = self.waiting.get(self.late).map(|waiting| waiting.since + self.node_timeout);
        let half_open = (self.late > 0).then(|| self.half_open_at()).flatten();
        timeout.into_iter().chain(half_open).min()
    }

    /// When the silence will have lasted too long for the connection to be believed in.
    fn half_open_at(&self) -> Option<Instant> {
        let first = self.waiting.front()?;
        Some(first.since.max(self.last_read) + 2 * self.node_timeout)
    }

    fn give_up_on_the_late(&mut self, now: Instant) -> Result<(), Arc<str>> {
        while let Some(waiting) = self.waiting.get_mut(self.late) {
            if waiting.since + self.node_timeout > now {
                break;
            }
            self.late += 1;
            if matches!(waiting.sent, Sent::Batch(..)) {
                // Still says how many replies follow, should they come.
                continue;
            }
            match std::mem::replace(&mut waiting.sent, Sent::TimedOut) {
                Sent::Call(call, _) | Sent::Part(call) => call.reply.send(Err(NodeError::Timeout)),
                Sent::Info(to) => {
                    // The parts that came belong to no later answer.
                    self.info = Ok(String::new());
                    if let Some(to) = to {
                        drop(to.send(Err(NodeError::Timeout)));
                    }
                }
                Sent::Batch(..) | Sent::TimedOut => {}
                Sent::Loaded(_) => self.loading = false,
            }
        }
        match self.half_open_at() {
            Some(at) if self.late > 0 && at <= now => Err("no reply for too long".into()),
            _ => Ok(()),
        }
    }
}

/// Whether the call may be in one batch with these: they expect the same marker, or one of
/// the two expects none.
fn joins(call: &Call, batch: &[Call]) -> bool {
    let Some(marker) = &call.marker else { return true };
    // All of a batch expect the same.
    match batch.iter().find_map(|other| other.marker.as_ref()) {
        Some(other) => Arc::ptr_eq(&other.expected, &marker.expected) || other.expected == marker.expected,
        None => true,
    }
}

fn read_value(reply: Reply) -> Result<Value, NodeError> {
    match reply {
        Reply::Value(value) => Ok(value),
        Reply::Error(text) => Err(NodeError::Redis(text.into())),
        Reply::Odd => Err(NodeError::Nonsense),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn what_was_written_is_not_kept_while_there_is_always_more_to_write() {
        const MORE: usize = 64 << 10;
        let (here, there) = UnixStream::pair().unwrap();
        let (mut stream, queue) = (Stream::Unix(here), Queue::new(1, NodeError::Down));
        let scripts = ScriptBytes::new();
        let mut driver = Driver::new(&mut stream, &queue, &scripts, &[], Duration::from_secs(1));
        // More than the kernel takes at once.
        driver.output = vec![0; 16 * MORE];
        let (mut buffer, mut taken) = (vec![0; MORE], 0);
        while taken < 256 * MORE {
            poll_fn(|cx| Poll::Ready(driver.write(cx))).await.unwrap();
            let length = there.try_read(&mut buffer).unwrap_or(0);
            driver.output.extend_from_slice(&buffer[..length]);
            assert!(driver.output.len() <= 64 * MORE);
            taken += length;
            tokio::task::yield_now().await;
        }
    }
}
