//! Messages are read as they were written, and other bytes are none.

use super::*;

#[test]
fn what_is_written_is_read() {
    let names = vec!["0000:01:00.0".to_owned(), "é".into()];
    let clients = names.clone();
    for ask in [
        Ask::Allocate {
            len: 1,
            align: 4096,
            segments: 16,
            host: true,
            others: true,
            job: "j".into(),
            clients,
        },
        Ask::Free { handle: u64::MAX },
        Ask::Widen { handle: 1, clients: names },
        Ask::Offer { handle: 7 },
        Ask::Open { token: [3; 16] },
        Ask::List { from: 7, clients: vec!["nvme0".into()] },
        Ask::Publish {
            name: "card".into(),
            function: "0000:01:00.0".into(),
            kind: "file".into(),
            offset: 4096,
            len: 1 << 40,
            all_users: true,
        },
        Ask::Rule { text: "deny publisher=*".into() },
        Ask::Route { publisher: "card".into(), client: "nvme0".into() },
        Ask::Dmabuf { handle: 9, piece: 15 },
        Ask::PublishHandle {
            name: "gpu".into(),
            function: String::new(),
            kind: "cuda".into(),
            export: [7; hmem::share::Export::LEN],
            offset: 1,
            len: 2,
        },
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
        Answer::Segment { of: Descriptor::Kept, offset: 4096, len: 1 << 40 },
        Answer::Done { count: 3 },
        Answer::Failed { errno: 12, why: "no".into() },
        Answer::Token { token: [9; 16] },
        Answer::Publisher(Published {
            name: "a".into(),
            kind: "b".into(),
            function: "c".into(),
            size: 1,
            available: 2,
            buffers: 3,
            draining: true,
            own: false,
            map: 3,
            distance: 7,
            why: "far".into(),
        }),
        Answer::Route { map: 1, distance: 4, why: "near".into() },
        Answer::Dmabuf { offset: 8192 },
        Answer::Handle { export: [5; hmem::share::Export::LEN], offset: 3, len: 4 },
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
