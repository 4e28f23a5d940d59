//! What an endpoint and its aliases are.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use engine::{EpId, OpFlags, RxId};
use libc::c_int;
use libfabric_sys as fi;

use super::flags::{self, How};
use super::options::{HasOptions, MIN_MULTI_RECV, RawValue, Value};
use super::receiver::{AnySource, Receiver, Rx};
use super::setup::Setup;
use super::xpu::XpuEp;
use crate::domain::Shared;
use crate::errno::Errno;
use crate::info::ep::EpAttrs;

/// `struct fid_ep`: an endpoint, or an alias of one.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct EpFid {
    pub(super) fid: fi::fid_ep,
    pub(super) endpoint: Arc<Endpoint>,
    /// What calls without flags run with: all that sets an alias apart.
    pub(super) tx_flags: AtomicU64,
    pub(super) rx_flags: AtomicU64,
}

/// What an endpoint and its aliases have in common.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(super) shared: Arc<Shared>,
    pub(super) attrs: EpAttrs,
    pub(super) live: OnceLock<Live>,
    pub(super) setup: Mutex<Setup>,
    pub(super) fids: Fids,
    /// It is a device's.
    pub(crate) xpu: Option<XpuEp>,
}

/// How many fids there are of one endpoint.
#[derive(Debug)]
pub(super) struct Fids(pub(super) Mutex<usize>);

impl Fids {
    pub(super) fn lock(&self) -> MutexGuard<'_, usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more.
    pub(super) fn add(&self) {
        *self.lock() += 1;
    }

    /// One fewer. For the last one, and for no other, `last` is called; where that fails, the fid stays. Of
    /// several that are closed at once, exactly one is the last.
    pub(super) fn take<E>(&self, last: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut fids = self.lock();
        if *fids == 1 {
            last()?;
        }
        *fids -= 1;
        Ok(())
    }
}

/// An endpoint that is enabled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live {
    pub(super) ep: EpId,
    pub(super) rx: RxId,
    /// Its queue was bound without `FI_SELECTIVE_COMPLETION`.
    pub(super) tx_always: bool,
    /// What each receive asks for, whatever its flags.
    pub(super) each_rx: OpFlags,
    /// Which receives are of any source, whatever they name.
    pub(super) any: AnySource,
    /// Receives would complete in no queue and no counter.
    pub(super) no_receive_queue: bool,
}

impl EpFid {
    /// As it is once enabled; until then nothing may be posted.
    #[inline]
    pub(super) fn live(&self) -> Result<&Live, Errno> {
        self.endpoint.live.get().ok_or(Errno::OPBADSTATE)
    }

    /// Which of the two defaults a control flag is about, and the flags next to that.
    pub(super) fn side(&self, flags: u64) -> Result<(&AtomicU64, u64), Errno> {
        const SIDES: u64 = fi::FI_TRANSMIT | fi::FI_RECV;
        let rest = flags & !SIDES;
        match flags & SIDES {
            fi::FI_TRANSMIT => Ok((&self.tx_flags, rest)),
            fi::FI_RECV => Ok((&self.rx_flags, rest)),
            _ => Err(Errno::INVAL),
        }
    }

    /// The flags of a transmit that hands over `len` bytes, and whether it is to wait for a counter.
    #[inline(always)]
    pub(super) fn transmit(&self, how: How, always: bool, len: usize) -> Result<(OpFlags, bool), Errno> {
        let (raw, quiet) = match how {
            How::Default => (self.tx_flags.load(Relaxed), false),
            How::Flags(flags) => {
                flags::offered(flags)?;
                (flags, false)
            }
            How::Inject => (self.tx_flags.load(Relaxed), true),
        };
        let flags = if quiet { flags::inject(raw) } else { flags::tx(raw, always) };
        let attrs = &self.endpoint.attrs;
        let most = if flags.contains(OpFlags::INJECT) { attrs.inject_size } else { attrs.max_msg_size };
        if len > most {
            return Err(Errno::MSGSIZE);
        }
        let triggered = raw & fi::FI_TRIGGER != 0;
        // The buffer is not looked at before the trigger, so it cannot be given back before either.
        if triggered && flags.contains(OpFlags::INJECT) {
            return Err(Errno::INVAL);
        }
        Ok((flags, triggered))
    }

    /// The flags of a message that hands over `len` bytes, unless it is to wait for a counter or something is
    /// wrong with it: [`EpFid::transmit`] knows.
    #[inline(always)]
    pub(super) fn transmit_plain(&self, how: How, always: bool, len: usize) -> Option<OpFlags> {
        let raw = match how {
            How::Flags(flags) => flags::offered(flags).map(|()| flags).ok()?,
            How::Default | How::Inject => self.tx_flags.load(Relaxed),
        };
        let flags = if let How::Inject = how { flags::inject(raw) } else { flags::tx(raw, always) };
        if raw & fi::FI_TRIGGER != 0 {
            return None;
        }
        let attrs = &self.endpoint.attrs;
        if len > if flags.contains(OpFlags::INJECT) { attrs.inject_size } else { attrs.max_msg_size } {
            return None;
        }
        Some(flags)
    }

    #[inline]
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.endpoint.shared
    }
}

impl Receiver for EpFid {
    #[inline]
    fn rx(&self) -> Result<Rx<'_>, Errno> {
        let live = self.live()?;
        if live.no_receive_queue {
            return Err(Errno::NOCQ);
        }
        Ok(Rx { shared: self.shared(), id: live.rx, ep: Some(live.ep), each: live.each_rx, any: live.any })
    }

    #[inline]
    fn default_flags(&self) -> u64 {
        self.rx_flags.load(Relaxed)
    }
}

impl HasOptions for EpFid {
    fn get(&self, name: c_int) -> Result<Value, Errno> {
        match name {
            fi::FI_OPT_TX_SIZE => Ok(Value::Size(self.endpoint.attrs.tx_size)),
            fi::FI_OPT_RX_SIZE => Ok(Value::Size(self.endpoint.attrs.rx_size)),
            _ => self.endpoint.setup().options.get(name),
        }
    }

    fn set(&self, name: c_int, new: &RawValue) -> Result<(), Errno> {
        let setup = &mut *self.endpoint.setup();
        let live = self.endpoint.live.get();
        setup.options.set(name, new, live.is_some())?;
        if let (fi::FI_OPT_MIN_MULTI_RECV, Some(live)) = (name, live) {
            let bytes = setup.options.min_multi_recv().unwrap_or(MIN_MULTI_RECV);
            self.endpoint.shared.lock().rx_set_min_multi_recv(live.rx, bytes);
        }
        Ok(())
    }
}

impl Endpoint {
    pub(super) fn setup(&self) -> MutexGuard<'_, Setup> {
        // Each change to it is whole, or was not made.
        self.setup.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it in the engine. FI_EBUSY: a peer is stopped while it accesses memory of ours, so that this
    /// has to be tried again.
    pub(super) fn shut(&self) -> Result<(), Errno> {
        // Sleepers let go of the link's descriptor before the engine closes it.
        self.setup().stop_sleeping();
        if let Some(xpu) = &self.xpu {
            xpu.stop();
        }
        if let Some(live) = self.live.get() {
            // Its link waits for peers to have what was sent, and other endpoints of the domain do not wait
            // for that.
            let mut link = None;
            match self.shared.take_back(|engine| engine.ep_part(live.ep).map(|parted| link = Some(parted))) {
                // It was closed before.
                Err(engine::Error::NotFound) => {}
                other => other?,
            }
            drop(link);
        }
        if let Some(xpu) = &self.xpu {
            xpu.closed(&self.shared);
        }
        Ok(())
    }
}

const _: () = {
    const fn any_thread<T: Send + Sync>() {}
    any_thread::<Endpoint>();
};

impl Drop for Endpoint {
    fn drop(&mut self) {
        // The last fid to be closed has ended it in the engine, where another endpoint may have its number by
        // now. What the endpoint was bound to may be closed only after that: `setup` is dropped behind this.
        if *self.fids.lock() > 0 {
            let _ = self.shut();
        }
        self.shared.children.dec();
    }
}
