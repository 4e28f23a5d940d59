//! An endpoint of a provider below: [`Below`] by libfabric's calls.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::RawFd;
use std::ptr::null_mut;

use fabric_client::{Object, Objects};
use hmem::{Kind, Span};
use libfabric_sys as fi;
use link_api::Way;
use wire::session::MOST_ADDRESS;

use crate::places::{Receives, Sends};
use crate::remote::{Place, Remote};
use below::{
    About, Below, Buffer, Dest, Did, Lease, Message, Next, NotSent, Piece, Poll, Stop, Usage, Waits,
};

mod open;

/// Bytes of a message, at most.
const MESSAGE: usize = 64 << 10;
/// Messages that are received into places of their own.
const RECEIVES: usize = 64;
/// Messages that are being sent from places of their own.
const SENDS: usize = 32;
/// How many of them one peer may have under way.
const WINDOW: u32 = 32;
/// Completions taken in one go.
const BATCH: usize = 16;
/// So many calls in a row that report sends and nothing else are not followed by another one at once. A
/// provider may do nothing for what arrives in a call that finds completions, and has to be called again
/// before long.
const ONLY_SENT: u32 = 3;

/// An endpoint of a provider below.
#[derive(Debug)]
pub struct Fabric {
    objects: ManuallyDrop<Objects>,
    receives: ManuallyDrop<Receives>,
    sends: ManuallyDrop<Sends>,
    named: Named,
    /// How many calls in a row have reported sends and nothing else.
    only_sent: u32,
    wait: Option<RawFd>,
    /// Completions that were taken, and not reported yet.
    did: Vec<Did>,
    dead: Option<String>,
    remote: Option<Remote>,
    core: fi::Core,
    pid: u32,
}

/// What [`About`] says of an endpoint.
#[derive(Debug)]
struct Named {
    most: usize,
    name: String,
    detail: String,
    dialect: (u32, u32),
    address: Vec<u8>,
}

impl Fabric {
    /// Posts receives into places that have none.
    fn post(&mut self) {
        if let Err(e) = self.receives.post(&self.objects.ep) {
            self.dead = Some(format!("fi_recv: {}", self.core.strerror(e)));
        }
    }

    /// What is reported next, of what was taken.
    #[inline]
    fn next_did(&mut self) -> Option<Did> {
        if let Some(did) = self.did.pop() {
            return Some(did);
        }
        if let Some(remote) = &mut self.remote {
            remote.serve();
        }
        self.dead.take().map(Did::Dead)
    }

    /// Takes completions off the queue; how many there were.
    fn read(&mut self) -> usize {
        let mut found: [MaybeUninit<fi::fi_cq_msg_entry>; BATCH] = [const { MaybeUninit::uninit() }; BATCH];
        let cq = self.objects.cq.at();
        // SAFETY: an open queue of this format, and room for so many entries.
        let n = unsafe {
            match (*(*cq).ops).read {
                Some(read) => read(cq, found.as_mut_ptr().cast(), BATCH),
                None => -(fi::FI_ENOSYS as isize),
            }
        };
        if n == -(fi::FI_EAVAIL as isize) {
            return self.read_error().into();
        }
        if n < 0 {
            if ![fi::FI_EAGAIN, fi::FI_EINTR].contains(&(-n as i32)) {
                self.dead = Some(format!("fi_cq_read: {}", self.core.strerror(n as i32)));
            }
            return 0;
        }
        for entry in found.iter().take(n as usize) {
            // SAFETY: the first `n` were written.
            let entry = unsafe { entry.assume_init_ref() };
            if let Some(place) = self.receives.of_context(entry.op_context) {
                self.did.push(Did::Came(Buffer(place as u32), entry.len.min(self.named.most), None));
            } else if self.sends.over(entry.op_context).is_some() {
                // The end of a send is not reported.
            } else if let Some(who) = self.remote.as_mut().and_then(|r| r.over(entry.op_context)) {
                self.did.push(Did::Over(who, true));
            }
        }
        self.did.reverse();
        n as usize
    }

    /// Takes completions by few calls, until there is one to report.
    fn read_soon(&mut self) {
        while self.did.is_empty() && self.dead.is_none() {
            let n = self.read();
            // Nothing, or the ends of sends, which are not reported.
            self.only_sent = if n == 0 || !self.did.is_empty() { 0 } else { self.only_sent + 1 };
            if n == 0 || n < BATCH && (1..=ONLY_SENT).contains(&self.only_sent) {
                break;
            }
        }
    }

    #[cold]
    fn read_error(&mut self) -> bool {
        // SAFETY: plain data, for which zeros are a value.
        let mut entry: fi::fi_cq_err_entry = unsafe { std::mem::zeroed() };
        let cq = self.objects.cq.at();
        // SAFETY: an open queue, and an entry, as long as any version has it, that asks for no further data.
        let n = unsafe {
            match (*(*cq).ops).readerr {
                Some(read) => read(cq, &mut entry, 0),
                None => -(fi::FI_ENOSYS as isize),
            }
        };
        if n <= 0 {
            return false;
        }
        let why = self.core.strerror(entry.err);
        if let Some(place) = self.receives.of_context(entry.op_context) {
            log::debug!("{}: a receive failed: {why}", self.named.name);
            self.receives.give_back(place);
            self.post();
        } else if let Some(who) = self.sends.over(entry.op_context) {
            self.did.push(Did::Failed(who, why));
        } else if let Some(who) = self.remote.as_mut().and_then(|r| r.over(entry.op_context)) {
            log::debug!("{}: a read or write failed: {why}", self.named.name);
            self.did.push(Did::Over(who, false));
        }
        true
    }
}

impl Below for Fabric {
    const LINK: &'static str = "ofi";

    fn about(&self) -> About<'_> {
        let Named { most, name, detail, dialect, address } = &self.named;
        let (dialect, most) = (*dialect, *most);
        let reads = self.remote.as_ref().map(|remote| remote.most);
        let writes = self.remote.as_ref().is_some_and(|remote| remote.writes);
        let (window, publishes, data, atomics) = (WINDOW, false, false, false);
        About {
            rails: false,
            name,
            detail,
            dialect,
            address,
            most,
            window,
            reads,
            writes,
            publishes,
            data,
            atomics,
        }
    }

    fn meet(&mut self, address: &[u8]) -> Result<Dest, String> {
        // No provider reads behind an address of its own length.
        let mut room = [0; MOST_ADDRESS];
        let own = self.named.address.len();
        if address.len() != own {
            return Err(format!("its address has {} bytes, and not {own}", address.len()));
        }
        room[..address.len()].copy_from_slice(address);
        let (mut dest, av) = (fi::FI_ADDR_NOTAVAIL, self.objects.av.at());
        // SAFETY: an open address vector; one address of the length that this provider's have, and a place
        // for the answer.
        let n = unsafe {
            match (*(*av).ops).insert {
                Some(insert) => insert(av, room.as_ptr().cast(), 1, &mut dest, 0, null_mut()),
                None => -fi::FI_ENOSYS,
            }
        };
        if n == 1 && dest != fi::FI_ADDR_NOTAVAIL {
            Ok(Dest(dest))
        } else {
            Err("fi_av_insert refuses its address".into())
        }
    }

    fn part(&mut self, dest: Dest) {
        let (mut dest, av) = (dest.0, self.objects.av.at());
        // SAFETY: an open address vector, and an address of it.
        unsafe {
            if let Some(remove) = (*(*av).ops).remove {
                remove(av, &mut dest, 1, 0);
            }
        }
    }

    fn send(&mut self, to: Dest, message: &Message<'_>) -> Result<(), NotSent> {
        let core = &self.core;
        self.sends.send(&self.objects.ep, to.0, message, |code| match code {
            0 => Ok(()),
            e if e == -(fi::FI_EAGAIN as isize) => Err(NotSent::Busy),
            e => Err(NotSent::Error(format!("fi_send: {}", core.strerror(e as i32)))),
        })
    }

    #[inline]
    fn keeps(&self, who: u64) -> bool {
        self.sends.keeps(who)
    }

    #[inline]
    fn poll(&mut self, how: Poll) -> Option<Did> {
        match how {
            Poll::Taken => return self.did.pop(),
            Poll::All => while self.did.is_empty() && self.dead.is_none() && self.read() > 0 {},
            Poll::Soon => self.read_soon(),
        }
        self.next_did()
    }

    #[inline]
    fn poll_next(&mut self) -> Next {
        self.read_soon();
        let Some(next) = self.did.last() else {
            if let Some(remote) = &mut self.remote {
                remote.serve();
            }
            return if self.dead.is_none() { Next::Nothing } else { Next::Other };
        };
        let &Did::Came(buffer, len, by) = next else { return Next::Other };
        self.did.truncate(self.did.len() - 1);
        Next::Came(buffer, len, by)
    }

    #[inline]
    fn has_taken(&self) -> bool {
        !self.did.is_empty()
    }

    #[inline]
    fn bytes(&self, buffer: Buffer) -> &[u8] {
        self.receives.bytes(buffer.0 as usize)
    }

    fn give_back(&mut self, buffer: Buffer) {
        self.receives.give_back(buffer.0 as usize);
        self.post();
    }

    fn try_wait(&mut self) -> bool {
        if !self.did.is_empty() || self.dead.is_some() {
            return false;
        }
        if self.receives.lacks_posts() {
            self.post();
        }
        if !self.remote.as_mut().is_none_or(Remote::try_wait) {
            return false;
        }
        let (fabric, mut fids) = (self.objects.fabric.at(), [self.objects.cq.fid()]);
        // SAFETY: an open fabric, and a list of one open object of it.
        unsafe { (*(*fabric).ops).trywait.is_some_and(|f| f(fabric, fids.as_mut_ptr(), 1) == 0) }
    }

    fn waits(&self) -> Waits {
        let lender = self.remote.as_ref().map(Remote::lender_fd);
        let lends_unseen = self.remote.as_ref().is_some_and(Remote::is_unseen);
        Waits { own: self.wait, lender, lends_unseen }
    }

    fn unwatch_lender(&mut self) {
        if let Some(remote) = &mut self.remote {
            remote.unwatch();
        }
    }
}

impl below::Remote for Fabric {
    fn reaches(&self, kind: Kind, usage: Usage) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.reaches(kind, usage))
    }

    fn lend(&mut self, _to: Dest, span: Span, way: Way) -> Option<Lease> {
        self.remote.as_mut()?.lend(span, way)
    }

    fn end_lease(&mut self, number: u64, _is_known: bool) -> bool {
        if let Some(remote) = &mut self.remote {
            remote.end_lease(number);
        }
        true
    }

    fn access(&mut self, who: u64, piece: &Piece) -> Result<(), NotSent> {
        let Objects { domain, av, cq, .. } = &*self.objects;
        let none = || NotSent::Error("it has no reads and no writes".into());
        self.remote.as_mut().ok_or_else(none)?.access(&Place { domain, av, cq }, who, piece)
    }

    fn stop(&mut self, what: Stop) -> bool {
        self.remote.as_mut().is_none_or(|remote| match what {
            Stop::Leases => remote.stop_lending(),
            Stop::Accesses | Stop::Connection(_) => remote.stop(),
        })
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used after this.
        let (objects, receives, sends) = unsafe {
            let objects = ManuallyDrop::take(&mut self.objects);
            (objects, ManuallyDrop::take(&mut self.receives), ManuallyDrop::take(&mut self.sends))
        };
        let Objects { ep, regions, av, cq, domain, fabric } = objects;
        // What a forked child has is its parent's.
        let stays = if std::process::id() == self.pid {
            let reads = self.remote.take().is_some_and(|mut remote| {
                let stays = !remote.close();
                if stays {
                    remote.leak();
                }
                stays
            });
            ep.close().is_err() || reads
        } else {
            if let Some(remote) = self.remote.take() {
                remote.leak();
            }
            ep.leak();
            true
        };
        if stays {
            // An endpoint that is open may still write.
            log::debug!("{}: its endpoint stays open, and keeps its memory", self.named.name);
            regions.into_iter().for_each(Object::leak);
            av.leak();
            cq.leak();
            domain.leak();
            fabric.leak();
            std::mem::forget((receives, sends));
            return;
        }
        // A completion that is still there refers to nothing any more.
        drop((regions, av, cq, domain, fabric));
        drop((receives, sends));
    }
}
