//! Places in memory that messages are received into and sent from.

use std::ptr::null_mut;

use fabric_client::{Object, made};
use libfabric_sys as fi;

use crate::slab::Slab;
use below::{Message, NotSent};

/// The local name of a registration.
#[derive(Clone, Copy, Debug)]
struct Desc(*mut libc::c_void);

// SAFETY: a name, which only the provider makes anything of.
unsafe impl Send for Desc {}

/// Registers places for messages; the registration belongs to the endpoint where `ep` is one.
fn register(
    domain: &Object<fi::fid_domain>,
    ep: Option<&Object<fi::fid_ep>>,
    (slab, access, key): (&Slab, u64, u64),
) -> Result<(Object<fi::fid_mr>, Desc), i32> {
    let (at, len) = slab.all();
    // SAFETY: an open domain; the memory is this endpoint's, and lives on until the registration is closed.
    let region = unsafe {
        let reg = (*(*domain.at()).mr).reg.ok_or(-fi::FI_ENOSYS)?;
        made(|mr| reg(domain.fid(), at.cast(), len, access, 0, key, 0, mr, null_mut()))?
    };
    if let Some(ep) = ep {
        region.bind(ep, 0)?;
        region.enable()?;
    }
    // SAFETY: an open registration.
    let desc = Desc(unsafe { (*region.at()).mem_desc });
    Ok((region, desc))
}

/// Places that messages are received into.
#[derive(Debug)]
pub(crate) struct Receives {
    slab: Slab,
    desc: Desc,
    /// Places that the provider has no receive for: none was posted, or it had no room.
    unposted: Vec<usize>,
}

impl Receives {
    /// `None` if there is no memory.
    pub(crate) fn new(n: usize, each: usize) -> Option<Receives> {
        Some(Receives { slab: Slab::new(n, each)?, desc: Desc(null_mut()), unposted: (0..n).collect() })
    }

    /// Registers them; see [`register`].
    pub(crate) fn register(
        &mut self,
        domain: &Object<fi::fid_domain>,
        ep: Option<&Object<fi::fid_ep>>,
    ) -> Result<Object<fi::fid_mr>, i32> {
        let (region, desc) = register(domain, ep, (&self.slab, fi::FI_RECV, 0))?;
        self.desc = desc;
        Ok(region)
    }

    /// Posts receives into places that have none; an error other than that there is no room.
    pub(crate) fn post(&mut self, ep: &Object<fi::fid_ep>) -> Result<(), i32> {
        while let Some(place) = self.unposted.pop() {
            let (at, context) = (self.slab.place(place), self.slab.context(place));
            let (len, desc) = (self.slab.each(), self.desc.0);
            // SAFETY: an open endpoint. The place has so many bytes, and is the provider's from here on,
            // until the completion with this context, as is the context.
            let code = unsafe {
                match (*(*ep.at()).msg).recv {
                    Some(recv) => recv(ep.at(), at.cast(), len, desc, fi::FI_ADDR_UNSPEC, context.cast()),
                    None => -(fi::FI_ENOSYS as isize),
                }
            };
            if code != 0 {
                self.unposted.push(place);
                return if code == -(fi::FI_EAGAIN as isize) { Ok(()) } else { Err(code as i32) };
            }
        }
        Ok(())
    }

    /// Whether a place has no receive.
    pub(crate) fn lacks_posts(&self) -> bool {
        !self.unposted.is_empty()
    }

    /// Whether no place has one.
    pub(crate) fn has_none_posted(&self) -> bool {
        self.unposted.len() == self.slab.len()
    }

    /// The place that a completion is of, if it is of one.
    #[inline]
    pub(crate) fn of_context(&self, context: *mut libc::c_void) -> Option<usize> {
        self.slab.of_context(context)
    }

    /// A place serves another receive.
    pub(crate) fn give_back(&mut self, place: usize) {
        assert!(place < self.slab.len());
        self.unposted.push(place);
    }

    /// The bytes of a place that a receive which is over has written.
    pub(crate) fn bytes(&self, place: usize) -> &[u8] {
        // SAFETY: the place was written by a receive that is over, and belongs to this side until it is given
        // back.
        unsafe { std::slice::from_raw_parts(self.slab.place(place), self.slab.each()) }
    }
}

/// Places that messages are sent from.
///
/// Short messages take one, too: a provider that fails to deliver what was injected does not report of which
/// peer that was.
#[derive(Debug)]
pub(crate) struct Sends {
    slab: Slab,
    desc: Desc,
    /// Places that no operation has.
    free: Vec<usize>,
    /// By place, what is reported if the message fails.
    who: Vec<u64>,
    /// By place, whether it is a frame that the provider has; and how many are.
    kept: Vec<bool>,
    keeps: usize,
}

impl Sends {
    /// `None` if there is no memory.
    pub(crate) fn new(n: usize, each: usize) -> Option<Sends> {
        // The first places are used most, and found first.
        let free = (0..n).rev().collect();
        let slab = Slab::new(n, each)?;
        Some(Sends { slab, desc: Desc(null_mut()), free, who: vec![0; n], kept: vec![false; n], keeps: 0 })
    }

    /// Registers them; see [`register`].
    pub(crate) fn register(
        &mut self,
        domain: &Object<fi::fid_domain>,
        ep: Option<&Object<fi::fid_ep>>,
    ) -> Result<Object<fi::fid_mr>, i32> {
        let (region, desc) = register(domain, ep, (&self.slab, fi::FI_SEND, 1))?;
        self.desc = desc;
        Ok(region)
    }

    /// Sends a message; `code` says what the provider's answer means.
    pub(crate) fn send(
        &mut self,
        ep: &Object<fi::fid_ep>,
        to: u64,
        message: &Message<'_>,
        code: impl FnOnce(isize) -> Result<(), NotSent>,
    ) -> Result<(), NotSent> {
        let total = message.total();
        assert!(total <= self.slab.each(), "a message that is too long");
        let Some(&place) = self.free.last() else { return Err(NotSent::Busy) };
        let at = self.slab.place(place);
        // SAFETY: a place of so many bytes that no operation has.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at, total) };
        if !message.copy_to(bytes) {
            return Err(NotSent::Fault);
        }
        let context = self.slab.context(place);
        // SAFETY: an open endpoint. The place is the provider's from here on, until the completion with this
        // context, as is the context.
        code(unsafe {
            match (*(*ep.at()).msg).send {
                Some(send) => send(ep.at(), at.cast(), total, self.desc.0, to, context.cast()),
                None => -(fi::FI_ENOSYS as isize),
            }
        })?;
        self.free.pop();
        self.who[place] = message.who;
        self.kept[place] = message.is_frame;
        self.keeps += usize::from(message.is_frame);
        Ok(())
    }

    /// The message that a completion is of, if it is of one, which is over: its [`Message::who`].
    #[inline]
    pub(crate) fn over(&mut self, context: *mut libc::c_void) -> Option<u64> {
        let place = self.slab.of_context(context)?;
        self.keeps -= usize::from(std::mem::take(&mut self.kept[place]));
        self.free.push(place);
        Some(self.who[place])
    }

    /// Whether the provider has a frame with this [`Message::who`].
    pub(crate) fn keeps(&self, who: u64) -> bool {
        self.keeps > 0 && self.kept.iter().zip(&self.who).any(|(kept, of)| *kept && *of == who)
    }
}
