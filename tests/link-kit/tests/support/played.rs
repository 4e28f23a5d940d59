//! A caller with rails that a test plays.

use std::io::Write as _;
use std::net::TcpStream;

use link::{TcpLink, TcpOptions};
use link_api::{Event, Gone, Link as _};
use wire::Addr;
use wire::session::{Caller, Heard, Hello, JobKey, Keys, MAC, Next, RECORD, RailNote, Role, VERDICT};

use super::caller::{call, read};
use super::pair::{event, open, options};

/// With so many connections for each peer.
pub fn railed(rails: usize) -> TcpOptions {
    let mut options = options("key");
    options.rails = rails;
    options.rails_at = (1..rails as u8).map(|n| [127, 0, 0, n + 1].into()).collect();
    options
}

pub fn filled(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed * 31) as u8).collect()
}

/// A caller that a test plays: its connection to a link that offers rails, the keys, and where it has read
/// that rails can be made.
pub struct Played {
    pub stream: TcpStream,
    pub keys: Keys,
    pub at: Vec<Addr>,
    pub name: Addr,
    pub called: Addr,
}

impl Played {
    pub fn new(to: &mut TcpLink, port: u16) -> Played {
        let (name, called) = (Addr::new(([127, 0, 0, 1], port).into()), to.addr());
        let mut stream = TcpStream::connect(called.sock()).unwrap();
        let Ok(Next::Connected(_, mut keys)) = call(&mut stream, to, name, called, "key") else {
            panic!("not connected")
        };
        let header: [u8; RECORD] = read(&mut stream, to, RECORD).try_into().unwrap();
        let len = wire::session::Opener::note_len(&header).expect("a note");
        let note = read(&mut stream, to, len);
        keys.opener.open_note(&header, &note).unwrap();
        let Some(RailNote::At(at)) = RailNote::decode(&note) else { panic!("{note:?}") };
        Played { stream, keys, at, name, called }
    }

    /// Makes a rail, with this key: what comes of it, and the rail.
    pub fn rail(
        &self,
        to: &mut TcpLink,
        number: u8,
        key: &JobKey,
    ) -> (Option<Result<Next, Heard>>, TcpStream) {
        self.rail_of(to, number, key, 1)
    }

    pub fn rail_of(
        &self,
        to: &mut TcpLink,
        number: u8,
        key: &JobKey,
        instance: u64,
    ) -> (Option<Result<Next, Heard>>, TcpStream) {
        let mut stream = TcpStream::connect(self.at[0].sock()).unwrap();
        let role = Role::Rail(number);
        let own = Hello { role, instance, name: self.name, other: self.called, nonce: [9; 32] };
        let mut caller = Caller::of_rail(key, number, own);
        stream.write_all(&caller.hello()).unwrap();
        let answer = read(&mut stream, to, Hello::LEN + MAC);
        let said = match caller.hear(&answer) {
            Ok(Next::Say(proof)) => proof,
            _ if answer.len() == Hello::LEN + MAC => vec![7; MAC],
            _ => return (None, stream),
        };
        let is_said = stream.write_all(&said).is_ok();
        let verdict = read(&mut stream, to, VERDICT);
        let heard = (is_said && verdict.len() == VERDICT).then(|| caller.hear(&verdict));
        (heard, stream)
    }

    pub fn say(&mut self, note: &[u8]) {
        let header = self.keys.sealer.seal_note(note);
        self.stream.write_all(&[&header, note].concat()).unwrap();
    }

    /// The link ends the connection, since what was said is none of its peer's business.
    pub fn is_cut_off_by(&self, to: &mut TcpLink) {
        match event(to, &mut open(options("key"))) {
            Event::Closed(peer, Gone::Denied) => assert_eq!(to.peer_addr(peer), self.name),
            other => panic!("{other:?}"),
        }
    }

    pub fn key(&self) -> JobKey {
        self.keys.rails.clone().expect("that of a connection")
    }
}

/// A peer with a rail that is up.
pub fn with_rail(b: &mut TcpLink) -> (Played, TcpStream, Keys) {
    let mut played = Played::new(b, 1);
    let (Some(Ok(Next::Connected(_, keys))), rail) = played.rail(b, 1, &played.key()) else { panic!() };
    played.say(&RailNote::Up(1).encode());
    (played, rail, keys)
}
