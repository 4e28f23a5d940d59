//! Limits and books of the daemon, seen from inside.

use super::answers::is_whole;
use super::peers::MOST_OF_USER;
use super::*;
use crate::daemon::wire::Token;
use crate::orchestrator::MOST_TOKENS;
use crate::publisher::Host;
use crate::rules::Rules;
use crate::topology::Topology;

/// A daemon with host memory to give, and its name.
fn daemon(test: &str) -> (String, Server) {
    let all = Orchestrator::new(Topology::parse("").unwrap(), Rules::default(), Some(1));
    all.publish(Arc::new(Host::new(1 << 20))).unwrap();
    let name = format!("strait-p2pmem-test/{test}/{}", std::process::id());
    let server = Server::new(&name, all).unwrap();
    (name, server)
}

/// The next answer that a client gets.
fn receive(server: &mut Server, client: &OwnedFd) -> Answer {
    // The first turn may take the connection alone.
    while !socket::wait(client, 0) {
        server.serve_once(Duration::from_millis(10));
    }
    let mut bytes = [0; MOST];
    let len = socket::receive(client, &mut bytes).unwrap();
    Answer::parse(&bytes[..len]).unwrap()
}

/// The first answer to what a client asks; those behind it are thrown away.
fn ask_once(server: &mut Server, client: &OwnedFd, ask: &Ask) -> Answer {
    socket::send(client, &ask.to_bytes()).unwrap();
    let answer = receive(server, client);
    while socket::wait(client, 0) {
        socket::receive(client, &mut [0; MOST]).unwrap();
    }
    answer
}

#[test]
fn a_handle_that_is_freed_leaves_no_notice() {
    let (name, mut server) = daemon("notices");
    let client = socket::connect(&name).unwrap();
    let mut ask = |ask: Ask| {
        let answer = ask_once(&mut server, &client, &ask);
        (answer, Arc::strong_count(&server.notices.list))
    };
    let (clients, job) = (Vec::new(), String::new());
    let allocate = Ask::Allocate { len: 1, align: 1, segments: 1, host: true, others: false, job, clients };
    let (Answer::Granted { handle, .. }, one) = ask(allocate) else { panic!("no memory") };
    for _ in 0..100 {
        let wider = ask(Ask::Widen { handle, clients: Vec::new() }).0;
        let Answer::Granted { handle, .. } = wider else { panic!("{wider:?}") };
        assert_eq!(ask(Ask::Free { handle }), (Answer::Done { count: 1 }, one));
    }
}

#[test]
fn a_user_has_no_more_descriptors_of_the_daemon_than_its_share() {
    let (name, mut server) = daemon("share");
    // Of a connection there are two, of its socket and its process.
    server.peers.most_descriptors = 8;
    let clients: Vec<OwnedFd> = (0..2).map(|_| socket::connect(&name).unwrap()).collect();
    let mut ask = |client: usize, ask: &Ask| {
        let sock = &clients[client];
        socket::send(sock, &ask.to_bytes()).unwrap();
        let mut answers = Vec::new();
        // The buffer and its piece come, or the reason.
        while !matches!(
            answers.last(),
            Some(Answer::Segment { .. } | Answer::Failed { .. } | Answer::Done { .. })
        ) {
            answers.push(receive(&mut server, sock));
        }
        answers
    };
    let (clients, job) = (Vec::new(), String::new());
    let allocate = Ask::Allocate { len: 1, align: 1, segments: 1, host: true, others: false, job, clients };
    ask(1, &Ask::List { from: 0, clients: Vec::new() });
    let mut handles = Vec::new();
    let refused = loop {
        // One connection or the other: they are of one user.
        match &ask(handles.len() % 2, &allocate)[0] {
            Answer::Granted { handle, .. } => handles.push(*handle),
            Answer::Failed { errno, why } => break (*errno, why.clone()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((handles.len(), refused.0), (4, libc::EUSERS), "{}", refused.1);
    assert!(refused.1.contains("ulimit -n"), "{}", refused.1);
    ask(0, &Ask::Free { handle: handles[0] });
    assert!(matches!(ask(1, &allocate)[0], Answer::Granted { .. }));
}

#[test]
fn a_user_has_no_more_buffers_than_the_daemon_can_keep_books_of() {
    let (name, mut server) = daemon("books");
    server.peers.most_buffers = 5;
    let clients: Vec<OwnedFd> = (0..2).map(|_| socket::connect(&name).unwrap()).collect();
    let mut ask = |client: usize, ask: Ask| {
        let answer = ask_once(&mut server, &clients[client], &ask);
        (answer, server.peers.tokens.len())
    };
    let (none, job) = (Vec::new(), String::new());
    let allocate = Ask::Allocate {
        len: 1,
        align: 1,
        segments: 1,
        host: true,
        others: false,
        job,
        clients: none.clone(),
    };
    let (Answer::Granted { handle, .. }, _) = ask(0, allocate) else { panic!("no memory") };
    let tokens: Vec<Token> = (1..=MOST_TOKENS)
        .map(|n| match ask(0, Ask::Offer { handle }) {
            (Answer::Token { token }, all) if all == n => token,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(matches!(ask(0, Ask::Offer { handle }).0, Answer::Failed { errno: libc::EINVAL, .. }));
    // One connection or the other, by one way or the other.
    for (n, token) in tokens.iter().take(4).enumerate() {
        let ask = match n % 2 {
            0 => ask(0, Ask::Widen { handle, clients: none.clone() }),
            _ => ask(1, Ask::Open { token: *token }),
        };
        assert!(matches!(ask.0, Answer::Granted { .. }), "{n}");
    }
    for way in [Ask::Open { token: tokens[0] }, Ask::Open { token: tokens[1] }] {
        assert!(matches!(ask(1, way).0, Answer::Failed { errno: libc::EUSERS, .. }));
    }
    let widen = Ask::Widen { handle, clients: none };
    assert!(matches!(ask(0, widen).0, Answer::Failed { errno: libc::EUSERS, .. }));
    // Its tokens go with it.
    assert_eq!(ask(0, Ask::Free { handle }), (Answer::Done { count: 1 }, 0));
    assert!(matches!(ask(1, Ask::Open { token: tokens[0] }).0, Answer::Failed { errno: libc::ENOENT, .. }));
}

#[test]
fn names_that_there_are_not_do_not_have_the_host_read_each_time() {
    let sysfs = std::env::temp_dir().join(format!("strait-p2pmem-names-{}", std::process::id()));
    std::fs::create_dir_all(sysfs.join("devices")).unwrap();
    let all = Orchestrator::of_host(&sysfs, Rules::default(), 0).unwrap();
    let name = format!("strait-p2pmem-test/names/{}", std::process::id());
    let mut server = Server::new(&name, all).unwrap();
    let ask = |server: &mut Server| server.clients(&["none".to_owned()]).unwrap_err().errno();
    assert_eq!(ask(&mut server), libc::ENODEV);
    assert!(server.asked.is_some());
    // To read it is an error from now on.
    std::fs::remove_dir_all(&sysfs).unwrap();
    server.asked = Instant::now().checked_add(Duration::from_secs(3600));
    assert_eq!(ask(&mut server), libc::ENODEV);
    server.asked = None;
    assert_eq!(ask(&mut server), libc::ENOENT);
}

#[test]
fn a_part_of_a_file_is_not_all_of_it() {
    let fd = ipc::memfd::create(c"part", 8192, ipc::memfd::Writers::All).unwrap();
    let parts = [(0, 8192), (0, 16384), (0, 4096), (4096, 4096), (4096, 8192)];
    assert_eq!(parts.map(|(at, len)| is_whole(&fd, at, len)), [true, true, false, false, false]);
}

/// Connections that have asked for something and make no room.
#[test]
fn connections_of_a_user_are_bounded_by_its_share_of_descriptors() {
    let (name, mut server) = daemon("connections");
    server.peers.most_descriptors = 10;
    let mut clients: Vec<OwnedFd> = Vec::new();
    let refused = loop {
        clients.push(socket::connect(&name).unwrap());
        let client = clients.last().unwrap();
        server.serve_once(Duration::from_millis(10));
        if socket::wait(client, 0) {
            break receive(&mut server, client);
        }
        ask_once(&mut server, client, &Ask::Free { handle: 1 });
        assert!(clients.len() <= 10, "more than its share");
    };
    assert!(matches!(&refused, Answer::Failed { errno: libc::EUSERS, why } if why.contains("ulimit")));
    assert_eq!((clients.len(), server.connections()), (6, 5));
    // Another one has its place.
    drop(clients.remove(0));
    while server.connections() > 4 {
        server.serve_once(Duration::from_millis(10));
    }
    let next = socket::connect(&name).unwrap();
    let answer = ask_once(&mut server, &next, &Ask::Free { handle: 1 });
    assert!(matches!(answer, Answer::Failed { errno: libc::ENOENT, .. }));
}

/// The last descriptors, of which other users' processes get none.
#[test]
fn root_and_the_own_user_connect_where_descriptors_are_reserved() {
    let (name, mut server) = daemon("reserve");
    server.peers.reserved_from = 0;
    let client = socket::connect(&name).unwrap();
    let answer = ask_once(&mut server, &client, &Ask::Free { handle: 1 });
    assert!(matches!(answer, Answer::Failed { errno: libc::ENOENT, .. }));
    let stranger = ipc::credentials::Cred { uid: u32::MAX - 1, pid: 0 };
    assert_eq!(server.peers.is_full(&client, &stranger, 0), Some(None));
    server.peers.reserved_from = usize::MAX;
    assert_eq!(server.peers.is_full(&client, &stranger, 0), None);
}

/// A connection without a request makes room for another one of its user.
/// Connections that ask for nothing: as many as a user may have, and more.
#[test]
fn silent_connection_makes_room_for_another_of_its_user() {
    let (name, mut server) = daemon("silent");
    server.peers.most_descriptors = usize::MAX;
    let first = socket::connect(&name).unwrap();
    server.serve_once(Duration::from_millis(1));
    assert!(matches!(ask_once(&mut server, &first, &Ask::Free { handle: 1 }), Answer::Failed { .. }));
    let mut silent = Vec::new();
    for _ in 0..MOST_OF_USER + 20 {
        silent.push(socket::connect(&name).unwrap());
        server.serve_once(Duration::from_millis(1));
    }
    assert_eq!(server.connections(), MOST_OF_USER);
    // What came last is served, and so is what has asked before; the oldest of the others are ended.
    for client in [silent.last().unwrap(), &first] {
        assert!(matches!(
            ask_once(&mut server, client, &Ask::Free { handle: 1 }),
            Answer::Failed { errno: libc::ENOENT, .. }
        ));
    }
    let ended = silent.iter().filter(|client| socket::hung_up(client)).count();
    assert_eq!(ended, 21);
    assert!(silent[..21].iter().all(socket::hung_up));
    drop(silent);
    while server.connections() > 1 {
        server.serve_once(Duration::from_millis(1));
    }
    assert_eq!(server.peers.silent.len(), 0);
}
