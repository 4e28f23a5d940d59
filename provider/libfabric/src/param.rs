//! Parameters: environment variables `FI_STRAIT_*`, listed by `fi_info -e`.

use std::sync::OnceLock;
use std::time::Duration;

use libfabric_sys as fi;
use link::OpenOptions;
use wire::Addr;

use crate::info::answer::INJECT_SIZE;

/// What the user may tune.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Params {
    /// What the user chose.
    eager_size: Option<usize>,
    pub ring_size: usize,
    /// To the first few peers.
    pub long_ring_size: usize,
    pub cma: bool,
    pub device_direct: bool,
    pub fault_handler: bool,
    pub connect_timeout: Duration,
    pub unexpected_size: usize,
    /// What is answered to whom has not said.
    pub inject_size: usize,
}

/// Where nothing but frames is there to be compared with.
const EAGER_SIZE: usize = 8192;

impl Default for Params {
    fn default() -> Params {
        let link = OpenOptions::default();
        Params {
            eager_size: None,
            ring_size: link.ring,
            long_ring_size: link.long_ring,
            cma: link.cma,
            device_direct: link.device_direct,
            fault_handler: true,
            connect_timeout: link.connect_timeout,
            unexpected_size: 256 << 20,
            inject_size: INJECT_SIZE,
        }
    }
}

impl Params {
    /// Bytes up to which messages travel inside a frame.
    pub(crate) fn eager_size(&self) -> usize {
        self.eager_size.unwrap_or_else(|| if self.cma { link::eager_size() } else { EAGER_SIZE })
    }

    /// Up to which they do if they are many in a row. Who sets the one means the other, too.
    pub(crate) fn eager_in_a_row(&self) -> usize {
        self.eager_size.unwrap_or_else(|| if self.cma { link::eager_in_a_row() } else { EAGER_SIZE })
    }

    /// How to open an endpoint's link.
    pub(crate) fn link(&self, bind: Addr) -> OpenOptions {
        OpenOptions {
            bind: Some(bind.sock()),
            ring: self.ring_size,
            long_ring: self.long_ring_size,
            cma: self.cma,
            device_direct: self.device_direct,
            connect_timeout: self.connect_timeout,
            ..OpenOptions::default()
        }
    }
}

static PARAMS: OnceLock<Params> = OnceLock::new();

/// The parameters, defaults before they have been read.
pub(crate) fn get() -> Params {
    PARAMS.get().copied().unwrap_or_default()
}

/// Declares and reads them.
///
/// # Safety
/// `provider` is the structure returned from `fi_prov_ini`, with its name set.
pub(crate) unsafe fn read(core: &fi::Core, provider: *mut fi::fi_provider) {
    let mut p = Params::default();
    // SAFETY: the caller's promise; every name is defined with one type only.
    unsafe {
        if let Some(n) = core.param_size(
            provider,
            c"eager_size",
            c"Messages and RMA of up to this many bytes travel inside a frame of the ring; longer ones \
              are copied straight between the two processes where the kernel allows it (default: 8192, or 4096 where \
              such a copy is quick)",
        ) {
            p.eager_size = Some(n);
        }
        if let Some(n) = core.param_size(
            provider,
            c"ring_size",
            c"Bytes of the shared memory ring from one endpoint to another (default: 520192 to the first 16, 126976 to more; least: 24576)",
        ) {
            p.ring_size = n.max(link::MIN_RING);
            p.long_ring_size = p.ring_size;
        }
        if let Some(n) = core.param_size(
            provider,
            c"unexpected_size",
            c"Bytes that messages may take up which arrived before they were asked for; beyond that \
              their senders keep them until they are wanted (default: 268435456)",
        ) {
            p.unexpected_size = n;
        }
        if let Some(n) = core.param_size(
            provider,
            c"inject_size",
            c"Bytes of FI_INJECT that a program is offered which does not say what it needs (default: 4096, which is \
              the most). 0 is for MPI programs whose short messages are on GPUs: injected they are copied twice",
        ) {
            p.inject_size = n.min(INJECT_SIZE);
        }
        if let Some(on) = core.param_bool(
            provider,
            c"cma",
            c"Copy long messages straight from one process to the other by process_vm_readv(2) where \
              the kernel allows it (default: yes)",
        ) {
            p.cma = on;
        }
        if let Some(on) = core.param_bool(
            provider,
            c"device_direct",
            c"Have a GPU copy straight from or to a peer's GPU memory where its driver allows it; else \
              such memory goes through the ring (default: yes)",
        ) {
            p.device_direct = on;
        }
        if let Some(on) = core.param_bool(
            provider,
            c"fault_handler",
            c"Handle SIGSEGV and SIGBUS of accesses by peers to memory that is registered but not mapped, so that they \
              are errors to the peer; other faults go to the handlers there were before. If not, the kernel makes \
              these accesses, which takes longer (default: yes)",
        ) {
            p.fault_handler = on;
        }
        if let Some(ms) = core.param_int(
            provider,
            c"connect_timeout",
            c"How many milliseconds a peer that was never reached may take to appear before operations \
              to it fail (default: 3000)",
        ) {
            p.connect_timeout = Duration::from_millis(ms.max(0).unsigned_abs().into());
        }
    }
    let _ = PARAMS.set(p);
}
