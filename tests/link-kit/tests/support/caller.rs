//! A caller of the link over TCP that says what a test wants, byte by byte.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use link::TcpLink;
use wire::Addr;
use wire::session::{Caller, Heard, Hello, JobKey, Next, Role};

use super::pair::until;

/// Reads so many bytes, or fewer where the end comes before, while `to` goes on.
pub fn read(stream: &mut TcpStream, to: &mut TcpLink, most: usize) -> Vec<u8> {
    stream.set_nonblocking(true).unwrap();
    let mut heard = vec![0; most];
    let mut n = 0;
    until("bytes or the end", || {
        to.progress();
        match stream.read(&mut heard[n..]) {
            Ok(0) => true,
            Ok(more) => {
                n += more;
                n == most
            }
            Err(e) => e.kind() != std::io::ErrorKind::WouldBlock,
        }
    });
    stream.set_nonblocking(false).unwrap();
    heard.truncate(n);
    heard
}

/// What a caller says of itself.
#[derive(Clone, Copy)]
pub struct Who {
    pub name: Addr,
    pub instance: u64,
}

/// Says hello over a connection that is there, to `to`: the proof that is to follow.
#[allow(dead_code)]
pub fn until_proof(stream: &mut TcpStream, to: &mut TcpLink, who: Who, called: Addr, key: &str) -> Vec<u8> {
    let mut caller = caller_of(who, called, key);
    stream.write_all(&caller.hello()).unwrap();
    let wants = caller.wants();
    match caller.hear(&read(stream, to, wants)) {
        Ok(Next::Say(proof)) => proof,
        other => panic!("{other:?}"),
    }
}

/// One that calls `called`, with the key of a job.
fn caller_of(who: Who, called: Addr, key: &str) -> Caller {
    let Who { name, instance } = who;
    let own = Hello { role: Role::Caller, instance, name, other: called, nonce: [7; 32] };
    Caller::new(&JobKey::from_secret(key.as_bytes()), own)
}

/// Says hello, proves the key and confirms; what comes of it.
#[allow(dead_code)]
pub fn call_as(
    stream: &mut TcpStream,
    to: &mut TcpLink,
    who: Who,
    called: Addr,
    key: &str,
) -> Result<Next, Heard> {
    let mut caller = caller_of(who, called, key);
    let heard = call_up_to_verdict(stream, to, &mut caller)?;
    if let Some(confirmation) = caller.confirmation() {
        stream.write_all(&confirmation).unwrap();
    }
    Ok(heard)
}

/// The same, by this name.
#[allow(dead_code)]
pub fn call(
    stream: &mut TcpStream,
    to: &mut TcpLink,
    name: Addr,
    called: Addr,
    key: &str,
) -> Result<Next, Heard> {
    call_as(stream, to, Who { name, instance: 1 }, called, key)
}

/// Says hello and proves the key by this caller, which does not confirm.
#[allow(dead_code)]
pub fn call_up_to_verdict(
    stream: &mut TcpStream,
    to: &mut TcpLink,
    caller: &mut Caller,
) -> Result<Next, Heard> {
    stream.write_all(&caller.hello()).unwrap();
    let wants = caller.wants();
    match caller.hear(&read(stream, to, wants))? {
        Next::Say(proof) => stream.write_all(&proof).unwrap(),
        other => return Ok(other),
    }
    let wants = caller.wants();
    caller.hear(&read(stream, to, wants))
}
