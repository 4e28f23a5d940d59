//! Links of the engine's test kit.

use hmem::Span;
use link_api::{Link as _, Path, RmaCaps};
use link_kit::Harness;
use testkit::{Direct, MemLink, Net, Setup};
use wire::Addr;

/// Makes [`MemLink`]s at one hub.
pub struct MemHarness {
    net: Net,
    direct: Direct,
    unused: u16,
}

impl MemHarness {
    pub fn new() -> MemHarness {
        MemHarness::by(Direct::InCall)
    }

    /// Links that access each other's host memory so.
    pub fn by(direct: Direct) -> MemHarness {
        let setup = Setup { direct, max_frame: Path::LEAST_FRAME, peer_access: true, ..Setup::default() };
        let mut net = Net::with(0, setup);
        net.set_boards(true);
        MemHarness { net, direct, unused: 0 }
    }
}

impl Harness for MemHarness {
    type Link = MemLink;

    fn open(&mut self) -> MemLink {
        self.net.link()
    }

    fn end(&mut self, link: MemLink) {
        self.net.part(link.place());
    }

    fn nowhere(&mut self) -> Addr {
        self.unused += 1;
        Addr::new(([10, 0, 0, 2], self.unused).into())
    }

    fn caps(&self) -> RmaCaps {
        match self.direct {
            Direct::InCall | Direct::Never => RmaCaps::SYNC | RmaCaps::DEVICE_HANDLES,
            Direct::Later | Direct::AnyOrder => RmaCaps::HOST_HANDLES | RmaCaps::DEVICE_HANDLES,
            Direct::Gets => RmaCaps::HOST_GETS | RmaCaps::DEVICE_HANDLES,
            Direct::Frames => RmaCaps::empty(),
        }
    }

    fn memory(&mut self, of: &MemLink, len: usize, handles: bool) -> Span {
        if handles { self.net.device(len) } else { self.net.memory(of.place(), len) }
    }

    fn pass_long(&mut self) {
        self.net.give_up_expected();
    }

    fn attacks(&self) -> usize {
        2
    }

    fn attack(&mut self, how: usize, from: &mut MemLink, to: &MemLink) -> bool {
        // Frames without a head, or without sense. What a peer sends is whole here.
        let bytes = [vec![], vec![0xff; 4_000]];
        self.net.inject(from.place(), to.place(), bytes[how].clone());
        let _ = from.addr();
        false
    }
}
