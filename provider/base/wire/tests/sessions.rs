//! Connections between hosts: bytes of a stranger, read in every way there is. Seeds are in `__fuzz__`, as
//! those of the frames.

use wire::Addr;
use wire::session::{
    Answerer, COVERED, Caller, Hello, JobKey, MAC, NOTE, Next, Opener, RECORD, RailNote, Role, VERDICT,
};

/// A hello that is understood says the same again; anything else is refused, by either side, and never
/// believed.
#[test]
fn sessions() {
    let addr = Addr::new(([10, 0, 0, 1], 7).into());
    let own = Hello { role: Role::Caller, instance: 1, name: addr, other: addr, nonce: [3; 32] };
    let job = JobKey::from_secret(b"key");
    let (mut caller, mut answerer) = (Caller::new(&job, own), Answerer::new(&job, own));
    let answer = answerer.hear_hello(&caller.hello()).expect("an honest hello");
    let Ok(Next::Say(proof)) = caller.hear(&answer) else { panic!("an honest answer") };
    let proven = std::panic::AssertUnwindSafe(answerer.hear_proof(&proof).expect("an honest proof"));
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Some(hello) = bytes.first_chunk().and_then(|b| Hello::decode(b).ok()) {
            assert_eq!(hello.encode(), bytes[..Hello::LEN]);
        }
        let mut answerer = Answerer::new(&job, own);
        if let Ok(answer) = answerer.hear_hello(bytes) {
            assert_eq!((answer.len(), answerer.wants()), (Hello::LEN + MAC, MAC));
        }
        assert!(answerer.hear_proof(bytes).is_err());
        // One that says to be a rail's caller is not believed either.
        let mut answerer = Answerer::new(&job, own);
        if answerer.hear_any(bytes, |_| Some(JobKey::from_secret(b"a connection"))).is_ok() {
            assert!(answerer.hear_proof(bytes).is_err());
        }
        let mut caller = Caller::new(&job, own);
        assert!(caller.hear(bytes).is_err());
        // Nor is the second message believed.
        let (mut caller, mut answerer) = (Caller::new(&job, own), Answerer::new(&job, own));
        let answer = answerer.hear_hello(&caller.hello()).expect("an honest hello");
        assert!(matches!(caller.hear(&answer), Ok(Next::Say(_))));
        assert_eq!(caller.wants(), VERDICT);
        assert!(caller.hear(bytes).is_err() && answerer.hear_proof(bytes).is_err());
        // Nor a confirmation.
        assert!(!proven.is_confirmation(bytes));
    });
}

/// Only headers that the other side has made open, whatever else there is.
#[test]
fn records() {
    let addr = Addr::new(([10, 0, 0, 1], 7).into());
    let own = Hello { role: Role::Caller, instance: 1, name: addr, other: addr, nonce: [3; 32] };
    let job = JobKey::from_secret(b"key");
    let (mut caller, mut answerer) = (Caller::new(&job, own), Answerer::new(&job, own));
    let answer = answerer.hear_hello(&caller.hello()).expect("an honest hello");
    let Ok(Next::Say(proof)) = caller.hear(&answer) else { panic!("an honest answer") };
    let keys = answerer.hear_proof(&proof).expect("an honest proof").keys();
    let opener = std::panic::AssertUnwindSafe(keys.opener);
    bolero::check!().for_each(|bytes: &[u8]| {
        let Some((header, rest)) = bytes.split_first_chunk::<RECORD>() else { return };
        let most = 100_000;
        let len = Opener::len(header, most);
        assert!(len.is_ok_and(|n| n <= most) || len.is_err());
        if let Some(len) = Opener::note_len(header) {
            assert!(len <= NOTE && Opener::len(header, most).is_err());
            let note = &rest[..rest.len().min(len)];
            assert!(opener.clone().open_note(header, note).is_err());
        }
        let front = &rest[..rest.len().min(len.unwrap_or(0)).min(COVERED)];
        assert!(opener.clone().open(header, front).is_err());
    });
}

/// A note that is understood says the same again.
#[test]
fn notes() {
    let at = |n: u8| Addr::new(([10, 0, 0, n], 7).into());
    let sound = [RailNote::Next(1), RailNote::Up(7), RailNote::Probe, RailNote::At(vec![at(1), at(2)])]
        .map(|note| note.encode());
    bolero::check!().with_max_len(2 * NOTE).for_each(|bytes: &[u8]| {
        // As they are, and sound ones with some bytes changed.
        let mut changed = sound.clone();
        for (i, change) in bytes.chunks_exact(2).take(4).enumerate() {
            let note = &mut changed[i % sound.len()];
            let at = usize::from(change[0]) % note.len();
            note[at] = change[1];
        }
        for bytes in changed.iter().map(Vec::as_slice).chain([bytes]) {
            if let Some(note) = RailNote::decode(bytes) {
                assert_eq!(note.encode(), bytes);
            }
        }
    });
}
