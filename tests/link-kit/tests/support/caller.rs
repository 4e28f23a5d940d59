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

/// Says hello by this name, over a connection that is there, to `to` as `called`, with the key of a job; what comes of it.
#[allow(dead_code)]
pub fn call(
    stream: &mut TcpStream,
    to: &mut TcpLink,
    name: Addr,
    called: Addr,
    key: &str,
) -> Result<Next, Heard> {
    let own = Hello { role: Role::Caller, instance: 1, name, other: called, nonce: [7; 32] };
    let mut caller = Caller::new(&JobKey::from_secret(key.as_bytes()), own);
    let heard = call_up_to_verdict(stream, to, &mut caller)?;
    if let Some(confirmation) = caller.confirmation() {
        stream.write_all(&confirmation).unwrap();
    }
    Ok(heard)
}

/// Likewise, by this caller, which does not confirm.
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
