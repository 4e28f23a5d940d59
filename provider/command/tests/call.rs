//! `strait info --peer ADDRESS --try` where no process of Strait answers. What one answers is checked by
//! ci/suite/doctor.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The least that the command takes.
const LIMIT: Duration = Duration::from_secs(3);

fn strait(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
    command.args(args);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FI_") && name != "FI_PROVIDER_PATH" {
            command.env_remove(name);
        }
    }
    command
}

/// Whether libfabric has the provider here.
fn is_offered() -> bool {
    let is = strait(&["info"]).output().unwrap().status.success();
    if !is {
        eprintln!("skipped: the provider is not offered");
    }
    is
}

/// What the command says of a peer: each time in the time that it was given.
fn call(peer: SocketAddr, links: &str) -> Value {
    let (begin, address) = (Instant::now(), peer.to_string());
    let output = strait(&["info", "--json", "--peer", &address, "--try", "--timeout", "3"])
        .env("FI_STRAIT_LINKS", links)
        .output()
        .unwrap();
    // What else the machine does, and the start of libfabric.
    assert!(begin.elapsed() < LIMIT + Duration::from_secs(5), "{:?}", begin.elapsed());
    assert_eq!(output.status.code(), Some(1));
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn check(peer: SocketAddr, links: &str, why: &str, todo: &str) {
    let way = call(peer, links);
    let is = |name: &str, words: &str| way["call"][name].as_str().is_some_and(|text| text.contains(words));
    assert!(way["call"]["answered"] == false && is("why", why) && is("todo", todo), "{links}: {way}");
}

#[test]
fn a_port_at_which_nothing_listens() {
    if is_offered() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        for links in ["tcp", "shm,tcp"] {
            check(free, links, "nothing listens", "address and port");
        }
    }
}

#[test]
fn a_socket_that_listens_and_never_answers() {
    if is_offered() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        check(address, "tcp", "the host has taken the connection and the process does not answer", "gdb -p");
    }
}

/// The kernel drops what comes to a socket whose queue of connections is full, as a firewall does.
#[test]
fn a_port_that_drops() {
    if is_offered() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // SAFETY: a socket that is open, and a number.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let _first = TcpStream::connect(address).unwrap();
        let full = TcpStream::connect_timeout(&address, Duration::from_millis(300));
        assert!(full.is_err(), "this kernel takes more than its queue has room for");
        check(address, "tcp", "a firewall drops what is sent to port", "open the ports");
    }
}

#[test]
fn something_that_speaks_another_protocol() {
    if is_offered() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let _ = std::io::Write::write_all(&mut stream.unwrap(), &[b'x'; 4096]);
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        check(address, "tcp", "does not speak this protocol", "address and port");
    }
}

#[test]
fn something_that_takes_a_connection_and_closes_it() {
    if is_offered() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
            }
        });
        check(address, "tcp", "has closed the connection", "address and port");
    }
}

#[test]
fn no_link_leads_there() {
    if is_offered() {
        let way = call("198.51.100.1:7".parse().unwrap(), "shm");
        assert!(way["link"].is_null() && way["call"].is_null(), "{way}");
    }
}
