//! A process that calls an endpoint over TCP, with the key of its job and a name of its choice, and does what
//! it can there: tests/faults/neighbour.c starts it as another user.
//!
//!     intruder USER SECRET VICTIM NAME KEY AT FROM LEN
//!
//! The job's key is made of SECRET, or, if that is empty, of what each process of the host knows: the user's
//! number. It calls the endpoint VICTIM under NAME, or, if that is `own`, under the name of a socket of its
//! own that answers calls. If it is let in, it sends a message with tag 1, and has the victim write LEN bytes
//! of the memory FROM of the process that is called NAME to AT in the registration KEY of the victim, and
//! reads them from there under a name of its own.
//!
//! Exits with 0 if it is refused, and with 3 if it is let in.
#![forbid(unsafe_code)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use wire::session::{
    Answerer, COVERED, Caller, Hello, JobKey, Keys, MAC, Next, Opener, RECORD, Role, VERDICT, Verdict,
};
use wire::{Addr, Aux, Flags, Head, Op, RmaSeg, Seg, put};

/// How long the victim may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

fn hello(role: Role, name: Addr, other: Addr) -> Hello {
    Hello { role, instance: 0x1d1e, name, other, nonce: [7; 32] }
}

fn read<const N: usize>(stream: &mut TcpStream) -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).map_err(|e| format!("no {N} bytes came: {e}"))?;
    Ok(bytes)
}

fn write(stream: &mut TcpStream, bytes: &[u8]) -> Result<(), String> {
    stream.write_all(bytes).map_err(|e| format!("{} bytes were not taken: {e}", bytes.len()))
}

/// A connection to an endpoint that let this process in.
struct Connection {
    stream: TcpStream,
    keys: Keys,
}

impl Connection {
    fn new(job: &JobKey, victim: Addr, name: Addr) -> Result<Connection, String> {
        let mut stream = TcpStream::connect_timeout(&victim.sock(), PATIENCE)
            .map_err(|e| format!("no connection: {e}"))?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(|e| e.to_string())?;
        let mut caller = Caller::new(job, hello(Role::Caller, name, victim));
        write(&mut stream, &caller.hello())?;
        match caller.hear(&read::<{ Hello::LEN + MAC }>(&mut stream)?) {
            Ok(Next::Say(proof)) => write(&mut stream, &proof)?,
            other => return Err(format!("the answer does not have the key: {other:?}")),
        }
        match caller.hear(&read::<VERDICT>(&mut stream)?) {
            Ok(Next::Connected(_, keys)) => {
                write(&mut stream, &caller.confirmation().unwrap_or_default())?;
                Ok(Connection { stream, keys })
            }
            Ok(Next::Declined(_, verdict)) => Err(format!("declined: {verdict:?}")),
            other => Err(format!("{other:?}")),
        }
    }

    fn send(&mut self, frame: &[u8]) -> Result<(), String> {
        let header = self.keys.sealer.seal(frame.len() as u32, &frame[..frame.len().min(COVERED)]);
        write(&mut self.stream, &[&header, frame].concat())
    }

    /// The next frame of the victim.
    fn frame(&mut self) -> Result<Vec<u8>, String> {
        loop {
            let header = read::<RECORD>(&mut self.stream)?;
            let note = Opener::note_len(&header);
            let len = match note {
                Some(len) => len,
                None => Opener::len(&header, 1 << 20).map_err(|e| format!("{e:?}"))?,
            };
            let mut bytes = vec![0; len];
            self.stream.read_exact(&mut bytes).map_err(|e| format!("no record of {len} bytes came: {e}"))?;
            if note.is_some() {
                self.keys.opener.open_note(&header, &bytes).map_err(|e| format!("{e:?}"))?;
            } else {
                self.keys.opener.open(&header, &bytes[..len.min(COVERED)]).map_err(|e| format!("{e:?}"))?;
                return Ok(bytes);
            }
        }
    }
}

/// Answers calls to this socket, as an endpoint of the job does.
fn answer_calls(job: &JobKey, listener: &TcpListener, own: Addr) {
    let answer = |mut stream: TcpStream| -> Result<TcpStream, String> {
        let mut answerer = Answerer::new(job, hello(Role::Answerer, own, own));
        let said = answerer.hear_hello(&read::<{ Hello::LEN }>(&mut stream)?);
        write(&mut stream, &said.map_err(|e| format!("{e:?}"))?)?;
        let proven = answerer.hear_proof(&read::<MAC>(&mut stream)?).map_err(|e| format!("{e:?}"))?;
        write(&mut stream, &proven.verdict(Verdict::Accepted))?;
        read::<MAC>(&mut stream)?;
        Ok(stream)
    };
    let mut kept = Vec::new();
    for stream in listener.incoming().flatten() {
        println!("called back: {:?}", answer(stream).map(|stream| kept.push(stream)));
    }
}

/// A name of this process, by which calls are answered.
fn own_name(job: &JobKey, victim: Addr) -> Result<Addr, String> {
    let listener =
        TcpListener::bind(SocketAddr::new(victim.ip(), 0)).map_err(|e| format!("no socket: {e}"))?;
    let own = Addr::new(listener.local_addr().map_err(|e| e.to_string())?);
    let job = job.clone();
    thread::spawn(move || answer_calls(&job, &listener, own));
    Ok(own)
}

/// Where memory of the peer is to go, and where it is.
struct Memory {
    key: u64,
    at: u64,
    from: u64,
    len: u64,
}

impl Memory {
    /// A frame that names both.
    fn frame(&self, op: Op, flags: Flags, req: u64) -> Vec<u8> {
        let mut frame = Vec::new();
        put(&mut frame, &Head::new(op, flags, Aux::rma(1, 1), req, 0));
        put(&mut frame, &RmaSeg { addr: self.at.into(), len: self.len.into(), key: self.key.into() });
        put(&mut frame, &Seg { addr: self.from.into(), len: self.len.into() });
        frame
    }
}

/// What can be done where it is let in.
fn intrude(job: &JobKey, victim: Addr, connection: &mut Connection, memory: &Memory) -> Result<(), String> {
    let mut message = Vec::new();
    put(&mut message, &Head::new(Op::Eager, Flags::TAGGED, 0, 1, 0));
    put(&mut message, b"intruded");
    connection.send(&message)?;
    println!("sent a message");

    // A number that the peer may have given to a request of its own, and has not taken back.
    connection.send(&memory.frame(Op::WriteRts, Flags::DIRECT, 9 << 32 | 3))?;
    println!("asked for memory of its peer: {:02x?}", connection.frame());

    let mut under_own = Connection::new(job, victim, own_name(job, victim)?)?;
    under_own.send(&memory.frame(Op::Read, Flags::empty(), 2))?;
    println!("read {:02x?}", under_own.frame()?.get(Head::LEN..Head::LEN + 16));
    Ok(())
}

fn main() -> ExitCode {
    let all: Vec<String> = std::env::args().skip(1).collect();
    let [user, secret, victim, name, key, at, from, len] = &all[..] else { panic!("eight arguments") };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let memory = Memory { key: number(key), at: number(at), from: number(from), len: number(len) };
    let victim = Addr::new(victim.parse().expect("an address"));
    let job = match secret.as_bytes() {
        [] => JobKey::from_job(&[user, ""]),
        secret => JobKey::from_secret(secret),
    };
    let name = match name.as_str() {
        "own" => own_name(&job, victim).expect("a socket"),
        name => Addr::new(name.parse().expect("an address")),
    };
    match Connection::new(&job, victim, name) {
        Err(why) => {
            println!("refused: {why}");
            ExitCode::SUCCESS
        }
        Ok(mut connection) => {
            println!("let in as {name}");
            if let Err(why) = intrude(&job, victim, &mut connection, &memory) {
                println!("{why}");
            }
            ExitCode::from(3)
        }
    }
}
