//! The messages between the daemon and its clients. Numbers are little-endian, a text is its length in two
//! bytes and UTF-8.

/// Longest packet.
pub const MOST: usize = 4096;
/// Longest name of a device, a publisher, or a job.
pub const MOST_NAME: usize = 64;
/// Most clients of a request.
pub const MOST_CLIENTS: usize = 32;
/// Most pieces of a buffer.
pub const MOST_SEGMENTS: u16 = 16;
/// Longest text of a reason.
const MOST_TEXT: usize = 2048;

/// What opens a shared buffer: as good as random.
pub type Token = [u8; 16];

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    Allocate {
        len: u64,
        align: u64,
        segments: u16,
        host: bool,
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
    List,
    Unpublish {
        publisher: String,
        how: How,
    },
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
        window: bool,
        sealed: bool,
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
    /// One of [`Ask::List`], which ends with `Done`.
    Publisher {
        name: String,
        kind: String,
        size: u64,
        available: u64,
        buffers: u64,
    },
    /// Comes unasked.
    Revoked {
        handle: u64,
        why: String,
    },
}

struct Writer(Vec<u8>);

impl Writer {
    fn text(&mut self, text: &str, most: usize) {
        let mut end = text.len().min(most);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.0.extend((end as u16).to_le_bytes());
        self.0.extend(&text.as_bytes()[..end]);
    }

    fn long(&mut self, n: u64) {
        self.0.extend(n.to_le_bytes());
    }

    fn names(&mut self, names: &[String]) {
        self.0.push(names.len().min(MOST_CLIENTS) as u8);
        names.iter().take(MOST_CLIENTS).for_each(|name| self.text(name, MOST_NAME));
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes().map(|[b]| b)
    }

    fn flag(&mut self) -> Option<bool> {
        self.byte().filter(|b| *b < 2).map(|b| b == 1)
    }

    fn short(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    fn word(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn text(&mut self, most: usize) -> Option<String> {
        let len = usize::from(self.short()?);
        let (text, rest) = self.0.split_at_checked(len).filter(|_| len <= most)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    fn names(&mut self) -> Option<Vec<String>> {
        let count = usize::from(self.byte()?);
        (0..count).map(|_| self.text(MOST_NAME)).collect::<Option<Vec<_>>>().filter(|_| count <= MOST_CLIENTS)
    }

    /// Nothing may be left.
    fn end<T>(self, message: T) -> Option<T> {
        self.0.is_empty().then_some(message)
    }
}

impl Ask {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer(Vec::new());
        match self {
            Ask::Allocate { len, align, segments, host, job, clients } => {
                w.0.push(1);
                w.long(*len);
                w.long(*align);
                w.0.extend(segments.to_le_bytes());
                w.0.push((*host).into());
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
            Ask::List => w.0.push(6),
            Ask::Unpublish { publisher, how } => {
                w.0.push(7);
                w.text(publisher, MOST_NAME);
                w.0.push(*how as u8);
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
                job: r.text(MOST_NAME)?,
                clients: r.names()?,
            },
            2 => Ask::Free { handle: r.long()? },
            3 => Ask::Widen { handle: r.long()?, clients: r.names()? },
            4 => Ask::Offer { handle: r.long()? },
            5 => Ask::Open { token: r.bytes()? },
            6 => Ask::List,
            7 => Ask::Unpublish {
                publisher: r.text(MOST_NAME)?,
                how: match r.byte()? {
                    0 => How::IfIdle,
                    1 => How::Drain,
                    2 => How::Revoke,
                    _ => return None,
                },
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
            Answer::Segment { window, sealed, offset, len } => {
                w.0.extend([0x82, (*window).into(), (*sealed).into()]);
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
            Answer::Publisher { name, kind, size, available, buffers } => {
                w.0.push(0x86);
                w.text(name, MOST_NAME);
                w.text(kind, MOST_NAME);
                [*size, *available, *buffers].into_iter().for_each(|n| w.long(n));
            }
            Answer::Revoked { handle, why } => {
                w.0.push(0x87);
                w.long(*handle);
                w.text(why, MOST_TEXT);
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
                Answer::Segment { window: r.flag()?, sealed: r.flag()?, offset: r.long()?, len: r.long()? }
            }
            0x83 => Answer::Done { count: r.long()? },
            0x84 => Answer::Failed { errno: r.word()? as i32, why: r.text(MOST_TEXT)? },
            0x85 => Answer::Token { token: r.bytes()? },
            0x86 => Answer::Publisher {
                name: r.text(MOST_NAME)?,
                kind: r.text(MOST_NAME)?,
                size: r.long()?,
                available: r.long()?,
                buffers: r.long()?,
            },
            0x87 => Answer::Revoked { handle: r.long()?, why: r.text(MOST_TEXT)? },
            _ => return None,
        };
        r.end(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let names = vec!["0000:01:00.0".to_owned(), "é".into()];
        let clients = names.clone();
        for ask in [
            Ask::Allocate { len: 1, align: 4096, segments: 16, host: true, job: "j".into(), clients },
            Ask::Free { handle: u64::MAX },
            Ask::Widen { handle: 1, clients: names },
            Ask::Offer { handle: 7 },
            Ask::Open { token: [3; 16] },
            Ask::List,
            Ask::Unpublish { publisher: "host".into(), how: How::Revoke },
        ] {
            let bytes = ask.to_bytes();
            assert_eq!(Ask::parse(&bytes), Some(ask));
            assert_eq!(Ask::parse(&bytes[..bytes.len() - 1]), None);
            assert_eq!(Ask::parse(&[&bytes[..], &[0]].concat()), None, "something is left");
        }
        let reach = vec![Reach { client: "nvme0".into(), map: 1, distance: 4 }];
        for answer in [
            Answer::Granted { handle: 1, publisher: "host".into(), kind: "host".into(), segments: 2, reach },
            Answer::Segment { window: true, sealed: false, offset: 4096, len: 1 << 40 },
            Answer::Done { count: 3 },
            Answer::Failed { errno: 12, why: "no".into() },
            Answer::Token { token: [9; 16] },
            Answer::Publisher { name: "a".into(), kind: "b".into(), size: 1, available: 2, buffers: 3 },
            Answer::Revoked { handle: 5, why: "gone".into() },
        ] {
            let bytes = answer.to_bytes();
            assert_eq!(Answer::parse(&bytes), Some(answer));
            assert_eq!(Answer::parse(&bytes[..bytes.len() - 1]), None);
        }
        // A text is cut between characters.
        let long = Answer::Failed { errno: 1, why: "é".repeat(4000) }.to_bytes();
        assert!(long.len() <= MOST && Answer::parse(&long).is_some());
    }

    #[test]
    fn any_bytes_are_a_message_or_none() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Some(ask) = Ask::parse(bytes) {
                assert_eq!(ask.to_bytes(), bytes);
            }
            if let Some(answer) = Answer::parse(bytes) {
                assert!(answer.to_bytes().len() <= MOST.max(bytes.len()));
            }
        });
    }
}
