//! The one choice of protocol.

/// How the bytes of an operation get to the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proto {
    /// Inside the frame that tells of them.
    Eager,
    /// The frame says where they are; the other side fetches them (directly, or asks for frames).
    Rendezvous,
}

/// What the choice depends on, fixed when an endpoint is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thresholds {
    /// Most bytes of payload that travel eagerly.
    pub(crate) eager: usize,
}

impl Thresholds {
    /// `eager` as configured, but no more than fits a frame beside the longest header.
    pub(crate) fn new(eager: usize, max_frame: usize) -> Self {
        let header = wire::Head::LEN + 8 + wire::MAX_SEGS * size_of::<wire::RmaSeg>();
        Thresholds { eager: eager.min(max_frame.saturating_sub(header)) }
    }

    /// For `len` bytes of a message or an RMA write.
    pub(crate) fn choose(&self, len: usize) -> Proto {
        if len <= self.eager { Proto::Eager } else { Proto::Rendezvous }
    }
}
