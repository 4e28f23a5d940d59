//! Which name a caller may have, by what its connection proves.
//!
//! A name has an address. A caller of another host has the name whose address it calls from; under any other
//! it is called itself, at the name's address, and what answers there has the name. A caller of this host has
//! a name of this host, and is a process of the same user, which the kernel knows of either end of a
//! connection. With a secret job key it may be of another user: it has proved the key.

use std::io;
use std::net::IpAddr;

use ipc::credentials::{UNMAPPED, User};
use ipc::{Unshared, tcp_user};
use meet::Refusals;
use wire::Addr;

use crate::net;
use crate::tcp::sock;

/// What a caller may do with the name that it says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::tcp) enum Claim {
    /// Have it.
    Granted,
    /// Be called under it: its connection comes from another address of its host, or from another host.
    CallBack,
    /// Call again, and have it once the application knows that peer: its connection comes from another
    /// address.
    Unknown,
    /// Call again: this process lacks what it takes to find out which user the caller is of.
    Later(Errno),
    /// Nothing, for this reason.
    Refused(String),
}

/// An error of the system's, by its number.
pub(in crate::tcp) type Errno = i32;

/// Why it is not known that a connection is of the same user.
#[derive(PartialEq, Eq, Debug)]
pub(in crate::tcp) enum Unproved {
    /// This process lacks a descriptor or memory.
    Lack(Errno),
    /// Its socket is not there any more, which says nothing of whose it was.
    Ended(String),
    /// For this reason, which stays.
    For(String),
}

impl From<Unproved> for Claim {
    fn from(why: Unproved) -> Claim {
        match why {
            Unproved::Lack(errno) => Claim::Later(errno),
            Unproved::Ended(why) | Unproved::For(why) => Claim::Refused(why),
        }
    }
}

/// What is known of a connection.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The address at its other end; and whether an interface of this host has it.
    from: IpAddr,
    from_here: bool,
    /// An interface of this host has the name's address.
    name_here: bool,
}

/// How the names of peers are proved.
#[derive(Debug)]
pub(in crate::tcp) struct Names {
    /// The job's key is a secret.
    secret: bool,
    /// Peers of this host may come by this link.
    host: bool,
    /// Callers that were refused.
    refused: Refusals,
}

/// Whether an interface of this host has an address: an error where this process lacks a descriptor to find
/// out. Where the kernel does not list addresses at all it knows of sockets.
fn is_here(ip: IpAddr) -> Result<bool, Errno> {
    match net::find_local(ip) {
        Err(e) if ipc::socket::is_lack(&e) => Err(e.raw_os_error().unwrap_or(libc::EMFILE)),
        found => Ok(found.unwrap_or(false)),
    }
}

impl Names {
    pub(in crate::tcp) fn new(secret: bool) -> Names {
        Names { secret, host: true, refused: Refusals::default() }
    }

    /// Whether peers of this host may come by this link.
    pub(in crate::tcp) fn serve_host(&mut self, on: bool) {
        self.host = on;
    }

    /// How a caller that is refused is logged: callers are not to fill the log.
    pub(in crate::tcp) fn level(&mut self) -> log::Level {
        if self.refused.is_logged() { log::Level::Warn } else { log::Level::Debug }
    }

    /// Whether a caller may have this name; `known`: what the application knows of the peer of that name.
    pub(in crate::tcp) fn claim(&self, name: &Addr, known: Option<&Addr>, fd: &Unshared) -> Claim {
        let Some((here, there)) = sock::ends(fd) else { return Claim::Refused("it is gone".into()) };
        let from = there.ip().to_canonical();
        let found = is_here(from).and_then(|from_here| Ok((from_here, is_here(name.ip())?)));
        let (from_here, name_here) = match found {
            Ok(found) => found,
            Err(errno) => return Claim::Later(errno),
        };
        let seen = Seen { from, from_here, name_here };
        self.judge(name, known, seen, || tcp_user::of_other_end(here, there))
    }

    fn judge(
        &self,
        name: &Addr,
        known: Option<&Addr>,
        seen: Seen,
        user: impl FnOnce() -> io::Result<Option<User>>,
    ) -> Claim {
        let is_here = match self.prove(seen.from_here, user) {
            Ok(is_here) => is_here,
            Err(why) => return why.into(),
        };
        let further = known.and_then(Addr::further).map(IpAddr::V4);
        match (is_here, seen.name_here) {
            (true, true) if !self.host => Claim::Refused(
                "peers of this host are reached by shared memory: give all processes of a job the same FI_STRAIT_LINKS"
                    .into(),
            ),
            (true, true) => Claim::Granted,
            (_, false) if seen.from == name.ip() => Claim::Granted,
            (true, false) => Claim::Refused("it calls from this host under a name of another one".into()),
            (false, true) => Claim::Refused(format!("it calls from {} under a name of this host", seen.from)),
            (false, false) if Some(seen.from) == further => Claim::Granted,
            (false, false) if known.is_some() => Claim::CallBack,
            (false, false) => Claim::Unknown,
        }
    }

    /// Whether what has answered at an address may be the peer of it: a process of this host is of the same
    /// user.
    pub(in crate::tcp) fn check_called(&self, fd: &Unshared) -> Result<(), Unproved> {
        let Some((here, there)) = sock::ends(fd) else { return Err(Unproved::Ended("it is gone".into())) };
        let there_here = is_here(there.ip().to_canonical()).map_err(Unproved::Lack)?;
        self.prove(there_here, || tcp_user::of_other_end(here, there)).map(|_| ())
    }

    /// Whether the other end of a connection is a socket of this host, and then of the same user. The kernel
    /// is asked in any case: an address that is this host's need not be one of its interfaces. `here`: it is
    /// one.
    fn prove(&self, here: bool, user: impl FnOnce() -> io::Result<Option<User>>) -> Result<bool, Unproved> {
        if self.secret {
            return Ok(here);
        }
        let why = match user() {
            Ok(Some(User::Ours)) => return Ok(true),
            Ok(None) if !here => return Ok(false),
            Ok(None) => return Err(Unproved::Ended("its socket is not there any more".into())),
            Ok(Some(User::Other)) => "it is another user's, and the job key is no secret".into(),
            Ok(Some(User::Unknown)) => UNMAPPED.into(),
            Err(e) if ipc::socket::is_lack(&e) => {
                return Err(Unproved::Lack(e.raw_os_error().unwrap_or(libc::EMFILE)));
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Unproved::Ended(e.to_string())),
            Err(e) => format!(
                "whether it is of this host, and which user's, cannot be found out ({e}): set FI_STRAIT_JOB_KEY to a secret"
            ),
        };
        Err(Unproved::For(why))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn addr(text: &str) -> Addr {
        Addr::new(text.parse().unwrap())
    }

    fn seen(from: &str, from_here: bool, name_here: bool) -> Seen {
        Seen { from: from.parse().unwrap(), from_here, name_here }
    }

    fn elsewhere() -> io::Result<Option<User>> {
        Ok(None)
    }

    fn unasked() -> io::Result<Option<User>> {
        panic!("the user is not asked for")
    }

    #[test]
    fn a_caller_of_another_host_has_the_name_of_its_address() {
        let names = Names::new(false);
        let name = addr("10.0.0.7:5");
        let from = |ip| seen(ip, false, false);
        assert_eq!(names.judge(&name, None, from("10.0.0.7"), elsewhere), Claim::Granted);
        // What a stranger says is called only where the application has said it, too.
        assert_eq!(names.judge(&name, None, from("10.0.0.8"), elsewhere), Claim::Unknown);
        assert_eq!(names.judge(&name, Some(&name), from("10.0.0.8"), elsewhere), Claim::CallBack);
        // A further address counts where the application has it, since a caller could say any.
        let known = name.with_further([10, 0, 0, 8].into());
        assert_eq!(names.judge(&name, Some(&known), from("10.0.0.8"), elsewhere), Claim::Granted);
        assert_eq!(names.judge(&known, Some(&name), from("10.0.0.8"), elsewhere), Claim::CallBack);
    }

    #[test]
    fn names_of_this_host_and_of_others_do_not_mix_even_with_a_secret() {
        for secret in [false, true] {
            let names = Names::new(secret);
            for (from_here, name_here) in [(true, false), (false, true)] {
                let user = move || Ok(from_here.then_some(User::Ours));
                let claim =
                    names.judge(&addr("10.0.0.7:5"), None, seen("10.0.0.9", from_here, name_here), user);
                assert!(matches!(claim, Claim::Refused(_)), "{claim:?}");
            }
        }
    }

    #[test]
    fn a_caller_of_this_host_is_of_the_same_user_unless_the_key_is_a_secret() {
        let name = addr("127.0.0.1:5");
        let here = seen("127.0.0.1", true, true);
        let of = |user: fn() -> io::Result<Option<User>>| Names::new(false).judge(&name, None, here, user);
        assert_eq!(of(|| Ok(Some(User::Ours))), Claim::Granted);
        let others: [fn() -> io::Result<Option<User>>; 4] = [
            || Ok(Some(User::Other)),
            || Ok(Some(User::Unknown)),
            || Ok(None),
            || Err(io::ErrorKind::NotFound.into()),
        ];
        for other in others {
            assert!(matches!(of(other), Claim::Refused(_)));
        }
        // One that is called and has ended is called again.
        for ended in [|| Ok(None), || Err(io::ErrorKind::NotFound.into())] {
            assert!(matches!(Names::new(false).prove(true, ended), Err(Unproved::Ended(_))));
        }
        let lack = of(|| Err(io::Error::from_raw_os_error(libc::EMFILE)));
        assert_eq!(lack, Claim::Later(libc::EMFILE), "which is no verdict on the caller");
        assert_eq!(Names::new(true).judge(&name, None, here, unasked), Claim::Granted);
    }

    /// An address that the kernel takes for this host's need be none of an interface that is up, and the list
    /// of these may be refused.
    #[test]
    fn a_caller_is_of_this_host_where_the_kernel_has_its_socket() {
        let name = addr("10.90.0.55:5");
        for (user, is_let_in) in [(User::Ours, true), (User::Other, false), (User::Unknown, false)] {
            let claim =
                Names::new(false).judge(&name, None, seen("10.90.0.55", false, false), || Ok(Some(user)));
            assert_eq!(claim == Claim::Granted, is_let_in, "{claim:?}");
        }
        let unknown = || Err(io::ErrorKind::PermissionDenied.into());
        let claim = Names::new(false).judge(&name, None, seen("10.90.0.55", false, false), unknown);
        assert!(matches!(claim, Claim::Refused(_)), "{claim:?}");
    }

    #[test]
    fn where_another_link_serves_this_host_no_caller_of_it_is_let_in() {
        for secret in [false, true] {
            let mut names = Names::new(secret);
            names.serve_host(false);
            let ours = || Ok(Some(User::Ours));
            let claim = names.judge(&addr("127.0.0.1:5"), None, seen("127.0.0.1", true, true), ours);
            assert!(matches!(claim, Claim::Refused(_)), "{claim:?}");
            let far = names.judge(&addr("10.0.0.7:5"), None, seen("10.0.0.7", false, false), elsewhere);
            assert_eq!(far, Claim::Granted);
        }
    }

    #[test]
    fn callers_that_are_refused_fill_no_log() {
        let mut names = Names::new(false);
        let warned = (0..1000).filter(|_| names.level() == log::Level::Warn).count();
        assert!((1..50).contains(&warned), "{warned}");
    }
}
