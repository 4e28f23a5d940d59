//! The messages between the daemon and its clients. Numbers are little-endian, a text is its length in two
//! bytes and UTF-8.

mod bytes;

pub use bytes::{MOST_CLIENTS, MOST_NAME};
use bytes::{Reader, Writer};

/// Longest packet.
pub const MOST: usize = 4096;
/// Most pieces of a buffer.
pub const MOST_SEGMENTS: u16 = 16;
/// Most publishers of an answer: a socket has room for so many.
pub const MOST_LISTED: usize = 32;
/// Longest rule of a client's.
pub const MOST_RULE: usize = 1024;
/// Longest text of a reason.
const MOST_TEXT: usize = 2048;

/// The first byte of [`Ask::Publish`], the only message that comes with a descriptor.
pub const PUBLISH: u8 = 8;

pub use crate::orchestrator::Token;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    Allocate {
        len: u64,
        align: u64,
        segments: u16,
        host: bool,
        /// Memory will do that other users can read and write.
        others: bool,
        job: String,
        clients: Vec<String>,
    },
    Free {
        handle: u64,
    },
    /// For further devices.
    Widen {
        handle: u64,
        clients: Vec<String>,
    },
    /// For another process.
    Offer {
        handle: u64,
    },
    Open {
        token: Token,
    },
    /// With their distances from these devices; not the first `from` of them.
    List {
        from: u16,
        clients: Vec<String>,
    },
    Unpublish {
        publisher: String,
        how: How,
    },
    /// Comes with a descriptor.
    Publish {
        name: String,
        /// The address of the PCI function that has it, or nothing.
        function: String,
        kind: String,
        offset: u64,
        len: u64,
        all_users: bool,
    },
    /// A rule for all that this connection asks for from now on.
    Rule {
        text: String,
    },
    Route {
        publisher: String,
        client: String,
    },
    Dmabuf {
        handle: u64,
        piece: u16,
    },
    /// As `Publish`, of an allocation that its driver opens by a token (`hmem::share::Export`).
    PublishHandle {
        name: String,
        function: String,
        kind: String,
        export: Handle,
        offset: u64,
        len: u64,
    },
}

/// The bytes of a driver's handle.
pub type Handle = [u8; hmem::share::Export::LEN];

/// What the descriptor of a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptor {
    /// A window's `allocate`.
    Window = 0,
    /// A memfd of the daemon's, of a size that stays.
    Fixed = 1,
    /// A memfd that cannot become shorter.
    Kept = 2,
    /// A dma-buf of another process.
    Dmabuf = 3,
    /// A file that the daemon's own process has published.
    File = 4,
}

/// How a publisher is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    IfIdle = 0,
    /// It gives nothing any more; an error as long as there are buffers.
    Drain = 1,
    Revoke = 2,
}

/// How a device reaches a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    pub client: String,
    pub map: u8,
    pub distance: u32,
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// So many `Segment`s follow.
    Granted {
        handle: u64,
        publisher: String,
        kind: String,
        segments: u16,
        reach: Vec<Reach>,
    },
    /// Comes with a descriptor.
    Segment {
        of: Descriptor,
        offset: u64,
        len: u64,
    },
    Done {
        count: u64,
    },
    Failed {
        errno: i32,
        why: String,
    },
    Token {
        token: Token,
    },
    /// One of [`Ask::List`], of which at most [`MOST_LISTED`] come; then `Done`, with the count of all.
    Publisher(Published),
    /// Comes unasked.
    Revoked {
        handle: u64,
        why: String,
    },
    Route {
        map: u8,
        distance: u32,
        why: String,
    },
    /// Comes with a descriptor.
    Dmabuf {
        offset: u64,
    },
    /// In place of a `Segment`: what a driver maps.
    Handle {
        export: Handle,
        offset: u64,
        len: u64,
    },
}

/// A publisher of the daemon's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    pub name: String,
    pub kind: String,
    /// The PCI function that has the memory, or nothing.
    pub function: String,
    pub size: u64,
    pub available: u64,
    pub buffers: u64,
    pub draining: bool,
    /// A process of this user has published it.
    pub own: bool,
    /// The worst of all clients'.
    pub map: u8,
    /// The sum over all clients.
    pub distance: u32,
    /// Why a client does not reach it; empty if all do.
    pub why: String,
}

impl Descriptor {
    fn of(byte: u8) -> Option<Descriptor> {
        use Descriptor::*;
        [Window, Fixed, Kept, Dmabuf, File].into_iter().find(|d| *d as u8 == byte)
    }
}

impl Ask {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer(Vec::new());
        match self {
            Ask::Allocate { len, align, segments, host, others, job, clients } => {
                w.0.push(1);
                w.long(*len);
                w.long(*align);
                w.0.extend(segments.to_le_bytes());
                w.0.extend([u8::from(*host), u8::from(*others)]);
                w.text(job, MOST_NAME);
                w.names(clients);
            }
            Ask::Free { handle } => {
                w.0.push(2);
                w.long(*handle);
            }
            Ask::Widen { handle, clients } => {
                w.0.push(3);
                w.long(*handle);
                w.names(clients);
            }
            Ask::Offer { handle } => {
                w.0.push(4);
                w.long(*handle);
            }
            Ask::Open { token } => {
                w.0.push(5);
                w.0.extend(token);
            }
            Ask::List { from, clients } => {
                w.0.push(6);
                w.0.extend(from.to_le_bytes());
                w.names(clients);
            }
            Ask::Unpublish { publisher, how } => {
                w.0.push(7);
                w.text(publisher, MOST_NAME);
                w.0.push(*how as u8);
            }
            Ask::Publish { name, function, kind, offset, len, all_users } => {
                w.0.push(PUBLISH);
                [name, function, kind].into_iter().for_each(|text| w.text(text, MOST_NAME));
                w.long(*offset);
                w.long(*len);
                w.0.push((*all_users).into());
            }
            Ask::Rule { text } => {
                w.0.push(9);
                w.text(text, MOST_RULE);
            }
            Ask::Route { publisher, client } => {
                w.0.push(10);
                w.text(publisher, MOST_NAME);
                w.text(client, MOST_NAME);
            }
            Ask::Dmabuf { handle, piece } => {
                w.0.push(11);
                w.long(*handle);
                w.0.extend(piece.to_le_bytes());
            }
            Ask::PublishHandle { name, function, kind, export, offset, len } => {
                w.0.push(12);
                [name, function, kind].into_iter().for_each(|text| w.text(text, MOST_NAME));
                w.0.extend(export);
                w.long(*offset);
                w.long(*len);
            }
        }
        w.0
    }

    /// `None` if the bytes are no message.
    pub fn parse(bytes: &[u8]) -> Option<Ask> {
        let mut r = Reader(bytes);
        let ask = match r.byte()? {
            1 => Ask::Allocate {
                len: r.long()?,
                align: r.long()?,
                segments: r.short().filter(|n| (1..=MOST_SEGMENTS).contains(n))?,
                host: r.flag()?,
                others: r.flag()?,
                job: r.text(MOST_NAME)?,
                clients: r.names()?,
            },
            2 => Ask::Free { handle: r.long()? },
            3 => Ask::Widen { handle: r.long()?, clients: r.names()? },
            4 => Ask::Offer { handle: r.long()? },
            5 => Ask::Open { token: r.bytes()? },
            6 => Ask::List { from: r.short()?, clients: r.names()? },
            7 => Ask::Unpublish {
                publisher: r.text(MOST_NAME)?,
                how: match r.byte()? {
                    0 => How::IfIdle,
                    1 => How::Drain,
                    2 => How::Revoke,
                    _ => return None,
                },
            },
            PUBLISH => Ask::Publish {
                name: r.text(MOST_NAME)?,
                function: r.text(MOST_NAME)?,
                kind: r.text(MOST_NAME)?,
                offset: r.long()?,
                len: r.long()?,
                all_users: r.flag()?,
            },
            9 => Ask::Rule { text: r.text(MOST_RULE)? },
            10 => Ask::Route { publisher: r.text(MOST_NAME)?, client: r.text(MOST_NAME)? },
            11 => Ask::Dmabuf { handle: r.long()?, piece: r.short()? },
            12 => Ask::PublishHandle {
                name: r.text(MOST_NAME)?,
                function: r.text(MOST_NAME)?,
                kind: r.text(MOST_NAME)?,
                export: r.bytes()?,
                offset: r.long()?,
                len: r.long()?,
            },
            _ => return None,
        };
        r.end(ask)
    }
}

impl Answer {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer(Vec::new());
        match self {
            Answer::Granted { handle, publisher, kind, segments, reach } => {
                w.0.push(0x81);
                w.long(*handle);
                w.text(publisher, MOST_NAME);
                w.text(kind, MOST_NAME);
                w.0.extend(segments.to_le_bytes());
                w.0.push(reach.len().min(MOST_CLIENTS) as u8);
                for Reach { client, map, distance } in reach.iter().take(MOST_CLIENTS) {
                    w.text(client, MOST_NAME);
                    w.0.push(*map);
                    w.0.extend(distance.to_le_bytes());
                }
            }
            Answer::Segment { of, offset, len } => {
                w.0.extend([0x82, *of as u8]);
                w.long(*offset);
                w.long(*len);
            }
            Answer::Done { count } => {
                w.0.push(0x83);
                w.long(*count);
            }
            Answer::Failed { errno, why } => {
                w.0.push(0x84);
                w.0.extend(errno.to_le_bytes());
                w.text(why, MOST_TEXT);
            }
            Answer::Token { token } => {
                w.0.push(0x85);
                w.0.extend(token);
            }
            Answer::Publisher(p) => {
                w.0.push(0x86);
                [&p.name, &p.kind, &p.function].into_iter().for_each(|text| w.text(text, MOST_NAME));
                [p.size, p.available, p.buffers].into_iter().for_each(|n| w.long(n));
                w.0.extend([u8::from(p.draining), u8::from(p.own), p.map]);
                w.0.extend(p.distance.to_le_bytes());
                w.text(&p.why, MOST_TEXT);
            }
            Answer::Revoked { handle, why } => {
                w.0.push(0x87);
                w.long(*handle);
                w.text(why, MOST_TEXT);
            }
            Answer::Route { map, distance, why } => {
                w.0.extend([0x88, *map]);
                w.0.extend(distance.to_le_bytes());
                w.text(why, MOST_TEXT);
            }
            Answer::Dmabuf { offset } => {
                w.0.push(0x89);
                w.long(*offset);
            }
            Answer::Handle { export, offset, len } => {
                w.0.push(0x8a);
                w.0.extend(export);
                w.long(*offset);
                w.long(*len);
            }
        }
        w.0
    }

    /// `None` if the bytes are no message.
    pub fn parse(bytes: &[u8]) -> Option<Answer> {
        let mut r = Reader(bytes);
        let answer = match r.byte()? {
            0x81 => Answer::Granted {
                handle: r.long()?,
                publisher: r.text(MOST_NAME)?,
                kind: r.text(MOST_NAME)?,
                segments: r.short().filter(|n| *n <= MOST_SEGMENTS)?,
                reach: {
                    let count = usize::from(r.byte()?);
                    let mut one =
                        || Some(Reach { client: r.text(MOST_NAME)?, map: r.byte()?, distance: r.word()? });
                    (0..count.min(MOST_CLIENTS)).map(|_| one()).collect::<Option<Vec<_>>>()?
                },
            },
            0x82 => {
                Answer::Segment { of: r.byte().and_then(Descriptor::of)?, offset: r.long()?, len: r.long()? }
            }
            0x83 => Answer::Done { count: r.long()? },
            0x84 => Answer::Failed { errno: r.word()? as i32, why: r.text(MOST_TEXT)? },
            0x85 => Answer::Token { token: r.bytes()? },
            0x86 => Answer::Publisher(Published {
                name: r.text(MOST_NAME)?,
                kind: r.text(MOST_NAME)?,
                function: r.text(MOST_NAME)?,
                size: r.long()?,
                available: r.long()?,
                buffers: r.long()?,
                draining: r.flag()?,
                own: r.flag()?,
                map: r.byte()?,
                distance: r.word()?,
                why: r.text(MOST_TEXT)?,
            }),
            0x87 => Answer::Revoked { handle: r.long()?, why: r.text(MOST_TEXT)? },
            0x88 => Answer::Route { map: r.byte()?, distance: r.word()?, why: r.text(MOST_TEXT)? },
            0x89 => Answer::Dmabuf { offset: r.long()? },
            0x8a => Answer::Handle { export: r.bytes()?, offset: r.long()?, len: r.long()? },
            _ => return None,
        };
        r.end(answer)
    }
}

#[cfg(test)]
mod tests;
