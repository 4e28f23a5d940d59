//! The processes of a pattern, seen from the one that starts them.

use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::launch::{Plan, end, worker};
use super::session::Role;
use super::test::Test;
use super::wire::{About, Channel, Order, Reply};
use crate::fabric::Error;

/// Workers that know each other. They are killed when this is dropped.
#[derive(Debug)]
pub struct Group {
    children: Vec<Child>,
    orders: Vec<Channel>,
    replies: Receiver<(usize, Option<Reply>)>,
    timeout: Duration,
}

impl Group {
    /// Starts one for each of `cpus`, with libfabric confined to `provider`.
    pub fn start(plan: &Plan, provider: &str, cpus: &[usize]) -> Result<Group, Error> {
        let (sender, replies) = channel();
        let mut group = Group { children: Vec::new(), orders: Vec::new(), replies, timeout: plan.timeout };
        for (rank, cpu) in cpus.iter().enumerate() {
            let shared = cpus.iter().filter(|other| *other == cpu).count() > 1;
            let other = if shared { *cpu } else { cpus[(rank + 1) % cpus.len()] };
            let plan = Plan { cpus: (*cpu, other), ..plan.clone() };
            // They talk over the fabric alone.
            let (aside, _) = UnixStream::pair()?;
            let (child, orders) = worker(&plan, Some(provider), Role::First, aside, rank, sender.clone())?;
            group.children.push(child);
            group.orders.push(orders);
        }
        Ok(group)
    }

    /// Gives each its order, and returns the answers, by rank.
    fn order(&mut self, order: impl Fn(usize) -> Order, what: &str) -> Result<Vec<Reply>, Error> {
        for (rank, channel) in self.orders.iter_mut().enumerate() {
            channel.send(&order(rank))?;
        }
        let limit = self.timeout * 3 + Duration::from_secs(5);
        let deadline = Instant::now() + limit;
        let mut replies: Vec<Option<Reply>> = self.orders.iter().map(|_| None).collect();
        let mut unsupported = None;
        while replies.iter().any(Option::is_none) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.replies.recv_timeout(left) {
                Ok((rank, Some(Reply::Failed { unsupported: true, text }))) => {
                    replies[rank] = Some(Reply::Done);
                    unsupported = Some(text);
                }
                Ok((rank, Some(Reply::Failed { text, .. }))) => {
                    return Err(Error::Failed(format!("{what}: process {rank}: {text}")));
                }
                Ok((rank, Some(reply))) => replies[rank] = Some(reply),
                Ok((rank, None)) => return Err(Error::Failed(format!("{what}: process {rank} went away"))),
                Err(_) => {
                    let silent = replies.iter().filter(|reply| reply.is_none()).count();
                    return Err(Error::Failed(format!(
                        "TIMEOUT: {what}: no answer from {silent} processes for {limit:?}"
                    )));
                }
            }
        }
        match unsupported {
            Some(text) => Err(Error::Unsupported(text)),
            None => Ok(replies.into_iter().flatten().collect()),
        }
    }

    /// Has them open endpoints and meet.
    pub fn open(&mut self, provider: &str, test: Test, most: usize) -> Result<About, Error> {
        let ranks = self.orders.len();
        let join = |rank| Order::Join { provider: provider.into(), test, most, rank, ranks };
        let (mut first, mut names) = (None, Vec::new());
        for reply in self.order(join, "opening the endpoints")? {
            let Reply::Joined(about, name) = reply else {
                return Err(Error::Failed(format!("{reply:?} after opening")));
            };
            first.get_or_insert(about);
            names.push(name);
        }
        self.order(|_| Order::Meet(names.clone()), "meeting")?;
        Ok(first.unwrap_or_default())
    }

    /// Steps, and the seconds they took.
    pub fn measure(&mut self, size: usize, seconds: f64) -> Result<(u64, f64), Error> {
        // The first find connections made, or make them; then enough for a guess at how many take the time
        // there is.
        let (mut count, mut took) = (2, self.repeat(size, 2)?);
        for _ in 0..4 {
            count *= 4;
            took = self.repeat(size, count)?;
            if took > seconds / 8.0 {
                break;
            }
            let factor = (seconds / 4.0 / took.max(1e-7)).clamp(1.0, 1000.0);
            count = ((count as f64 * factor) as u64).max(1);
        }
        let count = ((count as f64 * seconds / took.max(1e-7)) as u64).clamp(4, 5_000_000);
        Ok((count, self.repeat(size, count)?))
    }

    fn repeat(&mut self, size: usize, count: u64) -> Result<f64, Error> {
        match self.order(|_| Order::Repeat { size, count }, "measuring")?.first() {
            Some(Reply::Measured { seconds, .. }) => Ok(*seconds),
            other => Err(Error::Failed(format!("{other:?} after measuring"))),
        }
    }

    pub fn close(&mut self) -> Result<(), Error> {
        self.order(|_| Order::Close, "closing the endpoints").map(|_| ())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.children.drain(..).for_each(end);
    }
}
