//! The two processes that measure, seen from the one that starts them.

use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::launch::{Plan, end, worker};
use super::session::Role;
use super::test::Test;
use super::wire::{About, Channel, Order, Reply};
use crate::fabric::Error;

/// How long workers may take to end by themselves, with what providers do then.
const GRACE: Duration = Duration::from_millis(300);

/// Two workers, connected with each other and with this process. They are ended when this is dropped.
#[derive(Debug)]
pub struct Pair {
    children: [Child; 2],
    orders: [Channel; 2],
    replies: Receiver<(usize, Option<Reply>)>,
    timeout: Duration,
}

impl Pair {
    /// Starts them, with libfabric confined to `provider` if there is one.
    pub fn start(plan: &Plan, provider: Option<&str>) -> Result<Pair, Error> {
        let (a, b) = UnixStream::pair()?;
        let (sender, replies) = channel();
        let (child0, orders0) = worker(plan, provider, Role::First, a, 0, sender.clone())?;
        let (child1, orders1) = match worker(plan, provider, Role::Second, b, 1, sender) {
            Ok(second) => second,
            Err(error) => {
                end(child0);
                return Err(error);
            }
        };
        Ok(Pair { children: [child0, child1], orders: [orders0, orders1], replies, timeout: plan.timeout })
    }

    /// Gives both an order; the answer of the first if both followed it.
    ///
    /// After an error that is not [`Error::Unsupported`] the pair is of no more use.
    fn order(&mut self, order: &Order, what: &str) -> Result<Reply, Error> {
        for channel in &mut self.orders {
            channel.send(order)?;
        }
        // The workers' own waits end before this one does, and say more.
        let limit = self.timeout * 3 + Duration::from_secs(5);
        let mut deadline = Instant::now() + limit;
        let mut replies: [Option<Reply>; 2] = [None, None];
        let mut troubles: [Option<Error>; 2] = [None, None];
        while replies.iter().zip(&troubles).any(|(r, t)| r.is_none() && t.is_none()) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.replies.recv_timeout(left) {
                Ok((number, Some(Reply::Failed { unsupported: true, text }))) => {
                    troubles[number] = Some(Error::Unsupported(text));
                }
                Ok((number, Some(Reply::Failed { text, .. }))) => {
                    troubles[number] = Some(Error::Failed(text));
                }
                Ok((number, Some(reply))) => replies[number] = Some(reply),
                Ok((number, None)) => troubles[number] = Some(Error::Failed(self.end_of(number))),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
            if troubles.iter().any(Option::is_some) {
                // The other one will hardly get on; hear what it has to say about that.
                deadline = deadline.min(Instant::now() + Duration::from_millis(500));
            }
        }
        match (troubles, replies) {
            ([None, None], [Some(reply), Some(_)]) => Ok(reply),
            ([Some(Error::Unsupported(text)), Some(Error::Unsupported(_))], _) => {
                Err(Error::Unsupported(text))
            }
            // A floor concerns the first alone, which then still is in step with the second.
            ([Some(Error::Unsupported(text)), None], [_, Some(Reply::Done)]) => Err(Error::Unsupported(text)),
            ([None, None], replies) => {
                let silent: Vec<&str> = ["first", "second"]
                    .into_iter()
                    .zip(&replies)
                    .filter_map(|(name, reply)| reply.is_none().then_some(name))
                    .collect();
                Err(Error::Failed(format!(
                    "TIMEOUT: {what}: no answer from the {} process for {limit:?}: it hangs in \
                     libfabric",
                    silent.join(" and the ")
                )))
            }
            (troubles, _) => {
                let texts: Vec<String> = ["first", "second"]
                    .into_iter()
                    .zip(troubles)
                    .filter_map(|(name, trouble)| Some(format!("{name} process: {}", trouble?)))
                    .collect();
                Err(Error::Failed(format!("{what}: {}", texts.join("; "))))
            }
        }
    }

    pub fn open(&mut self, provider: &str, test: Test, most: usize) -> Result<About, Error> {
        let order = Order::Open { provider: provider.into(), test, most };
        match self.order(&order, "opening the endpoints")? {
            Reply::Opened(about) => Ok(about),
            other => Err(Error::Failed(format!("{other:?} after opening"))),
        }
    }

    /// Operations, and the seconds they took.
    pub fn measure(&mut self, size: usize, seconds: f64) -> Result<(u64, f64), Error> {
        match self.order(&Order::Measure { size, seconds }, "measuring")? {
            Reply::Measured { ops, seconds } => Ok((ops, seconds)),
            other => Err(Error::Failed(format!("{other:?} after measuring"))),
        }
    }

    pub fn close(&mut self) -> Result<(), Error> {
        self.order(&Order::Close, "closing the endpoints").map(|_| ())
    }

    fn end_of(&mut self, number: usize) -> String {
        // Its socket is closed, so it has ended or is about to.
        for _ in 0..50 {
            if let Ok(Some(status)) = self.children[number].try_wait() {
                return match status.signal() {
                    Some(signal) => format!("DIED of signal {signal}"),
                    None => format!("DIED with {status}"),
                };
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        "went away".into()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.orders.iter().for_each(Channel::end);
        let end = Instant::now() + GRACE;
        for child in &mut self.children {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
