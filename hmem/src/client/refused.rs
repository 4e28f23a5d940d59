//! Why memory of a client cannot be used: which of its callbacks has said so, and the errno.

/// A callback of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Call {
    /// None was called, or none is to blame.
    #[default]
    None = 0,
    Acquire = 1,
    GetPages = 2,
    DmaMap = 3,
    /// dma_map has succeeded, with pieces that are of no use.
    Pieces = 4,
    ExportDmabuf = 5,
    /// None was called: the client is not for devices.
    NotForDevices = 6,
}

impl Call {
    /// That of this number, as [`super::Table`] has it.
    pub(super) fn of(number: u32) -> Call {
        let pinning = [Call::Acquire, Call::GetPages, Call::DmaMap];
        let others = [Call::Pieces, Call::ExportDmabuf, Call::NotForDevices];
        pinning.into_iter().chain(others).find(|call| *call as u32 == number).unwrap_or_default()
    }

    /// What it is called, for people.
    pub fn name(self) -> &'static str {
        match self {
            Call::None => "the registration of a client's memory",
            Call::Acquire => "the client's acquire",
            Call::GetPages => "the client's get_pages",
            Call::DmaMap => "the client's dma_map",
            Call::Pieces => "what the client's dma_map answers",
            Call::ExportDmabuf => "the client's export_dmabuf",
            Call::NotForDevices => "the client, which is not registered for devices",
        }
    }

    /// The refusal of this callback.
    pub(super) fn refuses(self, errno: i32) -> Refused {
        Refused { call: self, errno }
    }
}

/// A refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The callback that returned the errno.
    pub call: Call,
    /// Above 0.
    pub errno: i32,
}

impl Refused {
    /// Whether dma_map has refused whatever memory of its client's there is.
    pub(super) fn is_for_good(&self) -> bool {
        self.call == Call::DmaMap && [libc::EOPNOTSUPP, libc::ENOSYS, libc::ENODEV].contains(&self.errno)
    }
}

impl From<i32> for Refused {
    fn from(errno: i32) -> Refused {
        Call::None.refuses(errno)
    }
}

impl From<Refused> for i32 {
    fn from(refused: Refused) -> i32 {
        refused.errno
    }
}
