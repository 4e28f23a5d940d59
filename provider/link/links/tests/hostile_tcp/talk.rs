//! A connection to the victim whose other side is hostile.

use std::io::{ErrorKind, Read as _};
use std::net::{Shutdown, TcpListener, TcpStream};

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use engine::FiAddr;
use wire::session::{
    Answerer, COVERED, Caller, Hello, Keys, MAC, Next, Opener, RECORD, RailNote, Role, VERDICT, Verdict,
};
use wire::{Addr, Head};

use super::draw::Draw;
use super::stage::{Stage, pull, push, say};

/// How many attacks there were, how many of their connections were accepted, the steps on these, and rails.
pub static REACHED: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

/// Which side the hostile one is.
pub enum Side {
    Caller,
    /// Where rails are made by the victim.
    Answerer(TcpListener),
}

pub struct Talk {
    pub stream: TcpStream,
    pub keys: Keys,
    pub own: Hello,
    pub foe: FiAddr,
    pub side: Side,
}

/// What the victim has said.
#[derive(Default)]
struct Heard {
    bytes: Vec<u8>,
    words: Vec<u64>,
    rails: Vec<Addr>,
}

pub fn connect(to: Addr) -> Option<TcpStream> {
    let stream = TcpStream::connect(to.sock()).ok()?;
    stream.set_nonblocking(true).unwrap();
    Some(stream)
}

/// Ends a connection; the victim has to end it, too.
pub fn hang_up(stage: &mut Stage, draw: &mut Draw<'_>, mut stream: TcpStream) {
    if draw.below(2) == 0 && stream.shutdown(Shutdown::Write).is_ok() {
        let mut some = [0; 4096];
        stage.until("the end of a connection", |_| match stream.read(&mut some) {
            Ok(n) => n == 0,
            Err(e) => e.kind() != ErrorKind::WouldBlock,
        });
    }
}

impl Heard {
    /// Takes in what is there.
    fn listen(&mut self, stream: &mut TcpStream, opener: &mut Opener) {
        let mut some = [0; 16 << 10];
        while let Ok(n @ 1..) = stream.read(&mut some) {
            self.bytes.extend(&some[..n]);
        }
        while let Some((header, rest)) = self.bytes.split_first_chunk::<RECORD>() {
            let note = Opener::note_len(header);
            let len = note.unwrap_or_else(|| Opener::len(header, 1 << 30).expect("a record of the victim"));
            let Some(bytes) = rest.get(..len) else { return };
            if note.is_some() {
                opener.open_note(header, bytes).expect("a note of the victim");
                if let Some(RailNote::At(at)) = RailNote::decode(bytes) {
                    self.rails = at;
                }
            } else {
                opener.open(header, &bytes[..len.min(COVERED)]).expect("a frame of the victim");
                if let Some(head) = Head::of(bytes) {
                    self.words.extend([head.tag.get(), head.data.get()]);
                }
                self.words.extend(
                    bytes.get(Head::LEN..Head::LEN + 8).map(|b| u64::from_le_bytes(b.try_into().unwrap())),
                );
                let cut = self.words.len().saturating_sub(60);
                self.words.drain(..cut);
            }
            self.bytes.drain(..RECORD + len);
        }
    }
}

/// A record of this frame.
fn sealed(keys: &mut Keys, frame: &[u8]) -> Vec<u8> {
    let header = keys.sealer.seal(frame.len() as u32, &frame[..frame.len().min(COVERED)]);
    [&header, frame].concat()
}

impl Talk {
    pub fn run(mut self, stage: &mut Stage, draw: &mut Draw<'_>) {
        let mut heard = Heard::default();
        let mut rails: Vec<(TcpStream, Keys)> = Vec::new();
        REACHED[1].fetch_add(1, Relaxed);
        let names = [self.own.name, stage.victim.addr, stage.honest_name()];
        if let Side::Answerer(door) = &self.side {
            let at = Addr::new(door.local_addr().unwrap());
            if draw.below(4) != 0 {
                let note = RailNote::At(vec![at; 2]).encode();
                let header = self.keys.sealer.seal_note(&note);
                push(stage, &mut self.stream, &[&header, &note[..]].concat());
            }
        }
        for _ in 0..100 {
            if draw.is_over() {
                break;
            }
            heard.listen(&mut self.stream, &mut self.keys.opener);
            let goes_on = match draw.below(64) {
                0..=27 => {
                    let frame = draw.frame(&heard.words);
                    let record = draw.spoil(&sealed(&mut self.keys, &frame));
                    push(stage, &mut self.stream, &record)
                }
                // More or less than what the header says.
                28 => {
                    let len = [0, 1, COVERED, 4_000, 1 << 20, 1 << 26, u32::MAX as usize]
                        [usize::from(draw.below(7))];
                    let front = vec![draw.byte(); len.min(COVERED)];
                    let header = self.keys.sealer.seal(len as u32, &front);
                    push(stage, &mut self.stream, &[&header, &front[..]].concat())
                }
                29..=31 => {
                    let note = draw.note(&names);
                    let note = &note[..note.len().min(wire::session::NOTE)];
                    let header = self.keys.sealer.seal_note(note);
                    let record = draw.spoil(&[&header, note].concat());
                    push(stage, &mut self.stream, &record)
                }
                32 => {
                    let bytes = draw.many(40);
                    push(stage, &mut self.stream, &bytes)
                }
                33..=39 => {
                    rails.extend(self.rail(stage, draw, &heard.rails));
                    true
                }
                40..=48 => self.by_rail(stage, draw, &mut rails, &heard.words),
                49..=58 => {
                    stage.deed(draw, self.foe);
                    true
                }
                _ => {
                    (0..draw.below(20)).for_each(|_| stage.pump());
                    true
                }
            };
            REACHED[2].fetch_add(1, Relaxed);
            if !goes_on {
                break;
            }
        }
        REACHED[3].fetch_add(rails.len(), Relaxed);
        drop(rails);
        hang_up(stage, draw, self.stream);
    }

    /// A frame on a rail, announced or not.
    fn by_rail(
        &mut self,
        stage: &mut Stage,
        draw: &mut Draw<'_>,
        rails: &mut [(TcpStream, Keys)],
        heard: &[u64],
    ) -> bool {
        let at = usize::from(draw.below(2));
        let Some((stream, keys)) = rails.get_mut(at) else { return true };
        if draw.below(8) != 0 {
            let note = RailNote::Next(at as u8 + 1).encode();
            let header = self.keys.sealer.seal_note(&note);
            if !push(stage, &mut self.stream, &[&header, &note[..]].concat()) {
                return false;
            }
        }
        let frame = draw.frame(heard);
        let record = draw.spoil(&sealed(keys, &frame));
        push(stage, stream, &record)
    }

    /// A further connection, of the side that makes it.
    fn rail(&mut self, stage: &mut Stage, draw: &mut Draw<'_>, at: &[Addr]) -> Option<(TcpStream, Keys)> {
        let key = self.keys.rails.clone()?;
        let (number, own) = (1 + draw.below(3), Hello { nonce: [draw.byte(); 32], ..self.own });
        match &self.side {
            Side::Caller => {
                let mut stream = connect(*at.first()?)?;
                let mut caller = Caller::of_rail(&key, number, own);
                let goes_on = say(stage, &mut stream, draw, &caller.hello());
                let answer = goes_on.then(|| pull(stage, &mut stream, caller.wants()))??;
                let Ok(Next::Say(proof)) = caller.hear(&answer) else { return None };
                let goes_on = say(stage, &mut stream, draw, &proof);
                let verdict = goes_on.then(|| pull(stage, &mut stream, VERDICT))??;
                let Ok(Next::Connected(_, keys)) = caller.hear(&verdict) else { return None };
                let note = RailNote::Up(number).encode();
                let header = self.keys.sealer.seal_note(&note);
                push(stage, &mut self.stream, &[&header, &note[..]].concat()).then_some((stream, keys))
            }
            Side::Answerer(door) => {
                let mut stream = door.accept().ok()?.0;
                stream.set_nonblocking(true).unwrap();
                let hello = pull(stage, &mut stream, Hello::LEN)?;
                let mut answerer = Answerer::new(&key, Hello { role: Role::Answerer, ..own });
                let answer = answerer.hear_any(&hello, |_| Some(key.clone())).ok()?;
                let goes_on = say(stage, &mut stream, draw, &answer);
                let proof = goes_on.then(|| pull(stage, &mut stream, MAC))??;
                let proven = answerer.hear_proof(&proof).ok()?;
                let verdict = draw.verdict();
                let goes_on = say(stage, &mut stream, draw, &proven.verdict(verdict));
                (goes_on && verdict == Verdict::Accepted).then(|| (stream, proven.keys()))
            }
        }
    }
}
