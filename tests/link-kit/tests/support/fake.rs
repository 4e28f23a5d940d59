//! A fabric inside a process, which brings messages in another order than they were sent in.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ofi::{Below, Buffer, Dest, Did, Message, NotSent};

const MOST: usize = 20_000;
const WINDOW: u32 = 16;

#[derive(Debug)]
struct Inbox {
    messages: Vec<Vec<u8>>,
    bell: UnixStream,
}

#[derive(Debug, Default)]
struct Net {
    inboxes: HashMap<u64, Inbox>,
    next: u64,
}

/// All endpoints of a test.
#[derive(Clone, Debug, Default)]
pub struct FakeNet(Arc<Mutex<Net>>);

impl FakeNet {
    fn lock(&self) -> MutexGuard<'_, Net> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn open(&self) -> Fake {
        let (bell, heard) = UnixStream::pair().expect("descriptors");
        bell.set_nonblocking(true).and_then(|()| heard.set_nonblocking(true)).expect("sockets");
        let mut net = self.lock();
        net.next += 1;
        let own = net.next;
        net.inboxes.insert(own, Inbox { messages: Vec::new(), bell });
        Fake {
            net: self.clone(),
            own,
            address: own.to_ne_bytes(),
            heard,
            buffers: Vec::new(),
            free: Vec::new(),
            turn: 0,
            deaf: false,
            failing: false,
            dead: false,
            lost: Vec::new(),
            stingy: false,
            noisy: false,
            name: "fake",
        }
    }
}

/// One of them.
#[derive(Debug)]
pub struct Fake {
    net: FakeNet,
    own: u64,
    address: [u8; 8],
    heard: UnixStream,
    buffers: Vec<Vec<u8>>,
    free: Vec<u32>,
    turn: u64,
    /// Nothing that is sent comes.
    pub deaf: bool,
    /// Each message is lost, which is told.
    pub failing: bool,
    /// It does nothing any more.
    pub dead: bool,
    lost: Vec<u64>,
    /// Now and then there is no room.
    pub stingy: bool,
    /// Its descriptor stays readable, whatever was taken.
    pub noisy: bool,
    pub name: &'static str,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.net.lock().inboxes.remove(&self.own);
    }
}

impl Below for Fake {
    fn name(&self) -> &str {
        self.name
    }

    fn dialect(&self) -> (u32, u32) {
        (1, 2)
    }

    fn address(&self) -> &[u8] {
        &self.address
    }

    fn most(&self) -> usize {
        MOST
    }

    fn window(&self) -> u32 {
        WINDOW
    }

    fn meet(&mut self, address: &[u8]) -> Result<Dest, String> {
        Ok(Dest(u64::from_ne_bytes(address.try_into().map_err(|_| "no address")?)))
    }

    fn part(&mut self, _dest: Dest) {}

    fn send(&mut self, to: Dest, message: &Message<'_>) -> Result<(), NotSent> {
        self.turn += 1;
        if self.stingy && self.turn % 11 == 0 {
            return Err(NotSent::Busy);
        }
        let mut bytes = vec![0; message.total()];
        if !message.copy_to(&mut bytes) {
            return Err(NotSent::Fault);
        }
        if self.failing {
            self.lost.push(message.who);
            return Ok(());
        }
        let mut net = self.net.lock();
        let Some(inbox) = net.inboxes.get_mut(&to.0).filter(|_| !self.deaf) else { return Ok(()) };
        // Some overtake those before them.
        let at = inbox.messages.len().saturating_sub((self.turn % 3) as usize);
        inbox.messages.insert(at, bytes);
        let _ = inbox.bell.write(&[1]);
        Ok(())
    }

    fn poll(&mut self) -> Option<Did> {
        if self.dead {
            return Some(Did::Dead("it is dead".into()));
        }
        if let Some(who) = self.lost.pop() {
            return Some(Did::Failed(who, "it failed".into()));
        }
        let mut net = self.net.lock();
        let inbox = net.inboxes.get_mut(&self.own)?;
        if inbox.messages.is_empty() {
            if !self.noisy {
                let _ = self.heard.read(&mut [0; 64]);
            }
            return None;
        }
        let bytes = inbox.messages.remove(0);
        let (at, len) = (self.free.pop().unwrap_or(self.buffers.len() as u32), bytes.len());
        if at as usize == self.buffers.len() {
            self.buffers.push(Vec::new());
        }
        self.buffers[at as usize] = bytes;
        Some(Did::Came(Buffer(at), len))
    }

    fn bytes(&self, buffer: Buffer) -> &[u8] {
        &self.buffers[buffer.0 as usize]
    }

    fn give_back(&mut self, buffer: Buffer) {
        assert!(!self.free.contains(&buffer.0), "a buffer that was given back");
        self.buffers[buffer.0 as usize].fill(0xee);
        self.free.push(buffer.0);
    }

    fn try_wait(&mut self) -> bool {
        self.net.lock().inboxes.get(&self.own).is_none_or(|inbox| inbox.messages.is_empty())
    }

    fn wait_fd(&self) -> Option<RawFd> {
        Some(self.heard.as_raw_fd())
    }
}
