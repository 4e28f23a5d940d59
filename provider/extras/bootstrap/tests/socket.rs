//! Exchanges over sockets: what all get, and which error they have when one is missing, leaves, or lies.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::{Duration, Instant};

use bootstrap::socket::{Join, Socket};
use bootstrap::{Address, Error, Exchange, Server, token};

fn join(rank: usize, size: usize, address: &Address) -> Join {
    let (address, token) = (address.clone(), "word".to_string());
    Join { rank, size, address, token, launcher: false, timeout: Duration::from_secs(20) }
}

fn name() -> Address {
    Address::Abstract(format!("strait-test/{}", token().unwrap()))
}

/// Each rank in a thread of its own; their answers by rank.
fn job<T: Send + 'static>(
    size: usize,
    address: &Address,
    each: impl Fn(Result<Socket, Error>) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let start = |rank| {
        let (join, each) = (join(rank, size, address), each.clone());
        std::thread::spawn(move || each(join.join()))
    };
    let threads: Vec<_> = (0..size).map(start).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn all_get_what_each_gave(address: &Address) {
    job(5, address, |job| {
        let mut job = job.unwrap();
        assert_eq!((job.size(), job.way()), (5, "strait"));
        for round in 0..20_usize {
            let mine = vec![job.rank() as u8; job.rank() * 1000 * (round % 3)];
            let all = job.allgather(&mine).unwrap();
            for (rank, bytes) in all.iter().enumerate() {
                assert_eq!(*bytes, vec![rank as u8; rank * 1000 * (round % 3)]);
            }
            job.barrier().unwrap();
        }
    });
}

#[test]
fn all_get_what_each_gave_by_an_abstract_name() {
    all_get_what_each_gave(&name());
}

#[test]
fn by_a_path_which_an_earlier_job_left() {
    let dir = std::env::temp_dir().join(format!("strait-test-{}", token().unwrap()));
    std::fs::create_dir(&dir).unwrap();
    let path = dir.join("socket");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    all_get_what_each_gave(&Address::Path(path.clone()));
    assert!(!path.exists());
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn by_a_file_which_an_earlier_job_left() {
    let dir = std::env::temp_dir().join(format!("strait-test-{}", token().unwrap()));
    std::fs::create_dir(&dir).unwrap();
    let path = dir.join("file");
    std::fs::write(&path, "word\nunix:@strait-test/nothing-is-here\n").unwrap();
    all_get_what_each_gave(&Address::File(path.clone()));
    assert!(!path.exists());
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn by_tcp() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    all_get_what_each_gave(&Address::Tcp(free.to_string()));
}

#[test]
fn one_that_goes_away_ends_the_wait_of_the_others() {
    let errors = job(3, &name(), |job| {
        let mut job = job.unwrap();
        job.barrier().unwrap();
        match job.rank() {
            1 => None,
            _ => Some(job.barrier().unwrap_err()),
        }
    });
    for error in errors.into_iter().flatten() {
        assert!(error.text().contains("rank 1 has ended, or left"), "{error}");
    }
}

#[test]
fn one_that_never_comes_is_named() {
    // Rank 1 may come too late as well, where others have the processor: then there is more time.
    for time in [300, 3_000, 30_000].map(Duration::from_millis) {
        let address = name();
        let mut first = join(0, 3, &address);
        first.timeout = time;
        let second = join(1, 3, &address);
        let thread = std::thread::spawn(move || second.join().and_then(|mut job| job.barrier()).unwrap_err());
        let error = first.join().unwrap().barrier().unwrap_err();
        let second = thread.join().unwrap();
        if time < Duration::from_secs(30) && error.text().contains(&format!("within {time:?}: 1, 2")) {
            continue;
        }
        assert!(error.text().contains(&format!("have not joined within {time:?}: 2")), "{error}");
        assert_eq!(second, error);
        break;
    }
    let mut none = join(1, 3, &name());
    none.timeout = Duration::from_millis(50);
    let error = none.join().unwrap_err();
    assert!(error.text().contains("found no exchange at unix:@"), "{error}");
}

#[test]
fn a_launcher_reports_why_a_process_will_not_come() {
    let address = name();
    let server = Server::start(std::slice::from_ref(&address), 2, "word", None).unwrap();
    let mut first = join(0, 2, &address);
    first.launcher = true;
    let thread = std::thread::spawn(move || {
        let mut job = first.join().unwrap();
        (job.barrier().unwrap_err(), job.barrier().unwrap_err())
    });
    server.ended(1);
    let (one, two) = thread.join().unwrap();
    assert!(one.text().contains("rank 1 has ended"), "{one}");
    assert_eq!(two, one, "a later question has the same answer");
    server.fail("rank 0 was killed");
}

#[test]
fn another_job_a_second_of_a_rank_and_a_wrong_size_are_refused() {
    let address = name();
    let _server = Server::start(std::slice::from_ref(&address), 2, "word", None).unwrap();
    let with = |change: &dyn Fn(&mut Join)| {
        let mut join = join(0, 2, &address);
        join.launcher = true;
        change(&mut join);
        join.join()
    };
    let wrong = |change: &dyn Fn(&mut Join)| with(change).unwrap_err().text().to_owned();
    assert!(wrong(&|join| join.token = "other".into()).contains("this is another job"));
    assert!(wrong(&|join| join.size = 3).contains("rank 0 of 3 cannot join a job of 2"));
    let _here = with(&|_| {}).unwrap();
    assert!(wrong(&|_| {}).contains("another process of rank 0"));
}

#[test]
fn a_process_that_sends_nonsense_ends_the_job_and_not_the_exchange() {
    let address = name();
    let Address::Abstract(place) = &address else { panic!() };
    let _server = Server::start(std::slice::from_ref(&address), 2, "word", None).unwrap();
    let connect = || UnixStream::connect_addr(&SocketAddr::from_abstract_name(place).unwrap()).unwrap();
    // Before its introduction: the connection is closed, and nothing else happens.
    let mut stranger = connect();
    stranger.write_all(&[0xff; 20]).unwrap();
    assert_eq!(stranger.read(&mut [0; 8]).unwrap(), 0);
    let mut liar = connect();
    let hello =
        [&b"strtbts1"[..], &1u32.to_le_bytes(), &2u32.to_le_bytes(), &4u32.to_le_bytes(), b"word"].concat();
    liar.write_all(&hello).unwrap();
    let mut good = join(0, 2, &address);
    good.launcher = true;
    let mut good = good.join().unwrap();
    // A frame of 2^64 - 1 bytes.
    liar.write_all(&[[0xff; 8].as_slice(), &[1]].concat()).unwrap();
    let error = good.barrier().unwrap_err();
    assert!(error.text().contains("rank 1 ended without leaving"), "{error}");
}

#[test]
fn a_listener_of_another_user_is_sent_nothing() {
    // SAFETY: geteuid(2) touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        return println!("left out: only root has other users");
    }
    let address = name();
    let Address::Abstract(place) = address.clone() else { panic!() };
    let other = std::thread::spawn(move || {
        // SAFETY: the system call changes the user of this thread alone, which ends soon.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, -1, 65534, -1) }, 0);
        let place = SocketAddr::from_abstract_name(place).unwrap();
        std::os::unix::net::UnixListener::bind_addr(&place).unwrap()
    });
    let listener = other.join().unwrap();
    let mut join = join(0, 2, &address);
    (join.launcher, join.timeout) = (true, Duration::from_millis(50));
    let error = join.join().unwrap_err();
    assert!(error.text().contains("another user"), "{error}");
    let (mut stream, _) = listener.accept().unwrap();
    assert_eq!(stream.read(&mut [0; 64]).unwrap(), 0, "not a byte");
}

/// An exchange of a job that is started by hand listens by TCP, and any process may connect.
#[test]
fn connections_that_say_nothing_keep_no_process_waiting() {
    let secret = token().unwrap();
    let server =
        Server::start(&[Address::Tcp("127.0.0.1:0".into())], 2, &secret, Some(Duration::from_secs(60)))
            .unwrap();
    let at = format!("127.0.0.1:{}", server.ports()[0]);
    // More than there are places, so that each of them is taken; they say nothing, too little, or the wrong
    // word.
    let mut strangers: Vec<TcpStream> = Vec::new();
    for n in 0..400 {
        let mut stream = TcpStream::connect(&at).unwrap();
        let said: &[u8] = [&b""[..], b"strtbts1", b"GET / HTTP/1.0\r\n\r\n"][n % 3];
        let _ = stream.write_all(said);
        strangers.push(stream);
    }
    let begin = Instant::now();
    let start = |rank: usize| {
        let (address, token) = (Address::Tcp(at.clone()), secret.clone());
        let timeout = Duration::from_secs(60);
        let join = Join { rank, size: 2, address, token, launcher: true, timeout };
        std::thread::spawn(move || join.join().unwrap().allgather(&[rank as u8]).unwrap())
    };
    for thread in [start(0), start(1)] {
        assert_eq!(thread.join().unwrap(), [[0], [1]]);
    }
    // Ten seconds were waited for each of the first twenty.
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    // The first to come are ended.
    let mut first = &strangers[0];
    first.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert!(!matches!(first.read(&mut [0]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock));
}
