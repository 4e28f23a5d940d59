//! The engine's endpoint by which peers are reached.

use std::io;

use engine::{
    ADDR_UNSPEC, Access, Atomic, Cntrs, Completion, Config, Ctx, Domain, EpConfig, FiAddr, MrId, OpFlags,
    Pattern, Recv, Reg, Rma, Send,
};
use link::Links;
use link_api::{Link as _, Path, RmaCaps};
use runtime::{Guard, Progress, Runtime};
use wire::Addr;

use super::super::terms::span;
use crate::{Error, Memory};

#[derive(Debug)]
pub(super) struct Ep {
    runtime: Runtime<Links>,
    ep: engine::EpId,
    rx: engine::RxId,
    av: engine::AvId,
    cq: engine::CqId,
}

impl Ep {
    pub(super) fn open(link: Links) -> Result<Ep, Error> {
        let mut domain = Domain::new(Config { virt_addr: false, rma_order: true });
        // `Ep::register` says so of each registration.
        domain.set_lasting();
        let runtime = Runtime::new(domain, Progress::Manual);
        let mut engine = runtime.enter()?;
        let (av, cq) = (engine.av_open(), engine.cq_open(4096));
        let (tx_cq, rx_cq, cntrs) = (Some(cq), Some(cq), Cntrs::default());
        let ep = engine.ep_open(EpConfig { link, av, rx: None, tx_cq, rx_cq, cntrs });
        let rx = engine.ep_rx(ep).ok_or(engine::Error::NotFound)?;
        drop(engine);
        Ok(Ep { runtime, ep, rx, av, cq })
    }

    fn enter(&self) -> Result<Guard<'_, Links>, Error> {
        Ok(self.runtime.enter_to_poll()?)
    }

    pub(super) fn insert(&self, addr: Addr) -> Result<FiAddr, Error> {
        Ok(self.enter()?.av_insert(self.av, addr))
    }

    /// Whether that is the address of a peer.
    pub(super) fn is_at(&self, at: FiAddr, addr: Addr) -> bool {
        self.enter().is_ok_and(|engine| engine.av_lookup(self.av, at) == Some(addr))
    }

    /// Whether peers are connected.
    pub(super) fn connected(&self) -> Result<impl Fn(FiAddr) -> bool + '_, Error> {
        let engine = self.enter()?;
        Ok(move |at| engine.ep_is_connected(self.ep, at))
    }

    /// Posts a receive into this buffer, which stays until it completes.
    pub(super) fn receive(&self, buffer: &[u8], ctx: usize) -> Result<(), Error> {
        let iov = [span(buffer.as_ptr(), buffer.len())];
        let pattern = Pattern { src: ADDR_UNSPEC, tag: None };
        let recv = Recv { pattern, iov: &iov, ctx: Ctx(ctx), flags: OpFlags::COMPLETION };
        Ok(self.enter()?.recv(self.rx, &recv)?)
    }

    /// Sends a message, which is copied (INJECT) or stays until it completes.
    pub(super) fn send(&self, to: FiAddr, message: &[u8], ctx: usize, flags: OpFlags) -> Result<(), Error> {
        let iov = [span(message.as_ptr(), message.len())];
        let send = Send { to, iov: &iov, tag: None, data: None, ctx: Ctx(ctx), flags };
        Ok(self.enter()?.send(self.ep, &send)?)
    }

    /// Starts a put or a get; whether the peer fetches the bytes of a put.
    pub(super) fn rma(&self, op: &Rma<'_>, len: usize) -> Result<bool, Error> {
        let mut engine = self.enter()?;
        engine.rma(self.ep, op)?;
        // If a peer that fetches is no more, or this process is not, what was put behind would be there
        // without these bytes.
        let is_fetched = |path: Path| path.rma.contains(RmaCaps::SYNC) && len > path.eager;
        Ok(op.write && engine.ep_path(self.ep, op.to).is_none_or(is_fetched))
    }

    pub(super) fn atomic(&self, op: &Atomic<'_>) -> Result<(), Error> {
        Ok(self.enter()?.atomic(self.ep, op)?)
    }

    /// Lets peers reach memory, which is kept until `unregister`; its key.
    pub(super) fn register(&self, memory: &Memory) -> Result<(MrId, u64), Error> {
        let memory_of = span(memory.address(0), memory.len());
        // SAFETY: the caller keeps it until the registration is closed; where that cannot be, it is leaked.
        let iov = [unsafe { memory_of.lasting() }];
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        Ok(self.enter()?.mr_reg(&Reg { iov: &iov, access, key: None })?)
    }

    pub(super) fn unregister(&self, mr: MrId, memory: Memory) {
        if self.runtime.take_back(|engine| engine.mr_close(mr)).is_err() {
            // A peer may still be inside.
            std::mem::forget(memory);
        }
    }

    /// Makes progress; what has completed.
    pub(super) fn progress(&self) -> Result<Vec<Completion>, Error> {
        let mut ended = Vec::new();
        let mut engine = self.enter()?;
        engine.progress();
        engine.cq_take(self.cq, usize::MAX, |_, completion| ended.push(*completion));
        while let Some(completion) = engine.cq_error(self.cq) {
            ended.push(completion);
        }
        Ok(ended)
    }

    pub(super) fn arm(&self) -> bool {
        self.enter().is_ok_and(|mut engine| engine.cq_is_empty(self.cq) && engine.arm())
    }

    /// What this process lacks for connections.
    pub(super) fn lack(&self) -> Option<io::Error> {
        self.enter().ok()?.link(self.ep)?.lack()
    }

    pub(super) fn is_busy(&self) -> bool {
        self.enter().is_ok_and(|engine| engine.ep_under_way(self.ep) > 0)
    }

    /// Closes the endpoint. An error: peers may still be inside of memory that it was given.
    pub(super) fn close(&self) -> Result<(), Error> {
        let mut link = None;
        let closed =
            self.runtime.take_back(|engine| engine.ep_part(self.ep).map(|parted| link = Some(parted)));
        drop(link);
        closed.map_err(|_| Error::System("peers may still be inside of this process's memory".into()))
    }
}
