//! The checks that every link passes, over devices that differ.

/// One as most are.
mod plain {
    use crate::device::harness;
    link_kit::conform! { harness("sv0", &[]); frames polls peers ends returns host hostile sleep threads frames_only handles flights sleep_in_flight regions_in_flight }
}

/// Receives are each queue pair's own, 16 bytes go inline, a request has one piece.
mod small {
    use crate::device::harness;
    link_kit::conform! {
        harness("sv0:nosrq,inline=16,sge=1", &[]);
        frames polls peers ends returns hostile sleep threads frames_only handles flights sleep_in_flight regions_in_flight
    }
}

/// A completion queue of 64 entries, and short queues: receives are rare, and senders wait for them.
mod short {
    use crate::device::harness;
    link_kit::conform! {
        harness("sv0:cqe=64,srqwr=16,wr=8,mtu=256,old", &[]);
        frames polls peers ends returns sleep threads frames_only handles flights sleep_in_flight regions_in_flight
    }
}

/// Soft RoCE's errors, with completions that are late and overtake those of other queue pairs.
mod late {
    use crate::device::harness;
    link_kit::conform! {
        harness("sv0:rxe", &[("DELAY_US", "200"), ("REORDER", "7")]);
        frames polls peers ends returns sleep threads frames_only handles flights sleep_in_flight regions_in_flight
    }
}

/// Soft RoCE where answers are late: it repeats requests to bind, and reads memory of writes that have completed.
mod repeating {
    use crate::device::harness;
    link_kit::conform! {
        harness("sv0:rxe,repeats", &[]);
        frames ends frames_only handles flights sleep_in_flight regions_in_flight
    }
}

/// InfiniBand's link layer: by LID.
mod infiniband {
    use crate::device::harness;
    link_kit::conform! { harness("sv0:ib", &[]); frames ends handles regions_in_flight }
}

/// Connections are closed as soon as nothing goes by them. Left out are those checks whose premise is a
/// connection that stays open between two calls:
///
/// - `hostile`: a forged message, which neither end counts, arrives. It is dropped where both ends have
///   closed the connection meanwhile, and so does not end the peer.
/// - `regions_in_flight`: what is published is accessed by the next call. After a connection has been closed
///   `published` finds nothing and `start` is refused (`Fault`; `Memory` while a proposal is not answered) until
///   a frame has connected anew, and the peer was asked again. The engine's accesses by closed connections are
///   in `idle`.
mod closing {
    use crate::device::harness_that_closes;
    link_kit::conform! {
        harness_that_closes("sv0", &[]);
        frames polls peers ends returns sleep threads frames_only handles flights sleep_in_flight
    }
}

/// So they are where all is late, and queues are short.
mod closing_late {
    use crate::device::harness_that_closes;
    link_kit::conform! {
        harness_that_closes("sv0:rxe,cqe=64,srqwr=16,wr=8", &[("DELAY_US", "200"), ("REORDER", "7")]);
        frames polls peers ends returns sleep threads frames_only handles flights sleep_in_flight
    }
}

/// Long accesses go in parts by two ports; all that has 1 KiB is long.
mod rails {
    use crate::device::harness_with_rails;
    link_kit::conform! {
        harness_with_rails("sv0;sv1:inline=16,sge=1,mtu=256", &[]);
        frames polls peers ends returns host hostile sleep threads frames_only handles flights sleep_in_flight regions_in_flight
    }
}

/// So they do where all is late.
mod rails_late {
    use crate::device::harness_with_rails;
    link_kit::conform! {
        harness_with_rails("sv0:rxe;sv1:rxe,cqe=64,wr=8", &[("DELAY_US", "200"), ("REORDER", "7")]);
        frames ends returns sleep handles flights sleep_in_flight regions_in_flight
    }
}

/// Accesses are not to be had where the device serves no reads.
mod without_reads {
    use crate::device::harness_without_accesses;
    link_kit::conform! { harness_without_accesses("sv0:reads=0", &[]); frames peers frames_only }
}

/// Queue pairs are connected by librdmacm, and a message without a receive ends one.
mod iwarp {
    use crate::device::harness_without_accesses;
    link_kit::conform! {
        harness_without_accesses("sv0:iwarp", &[]);
        frames polls peers ends returns host hostile sleep threads frames_only
    }
}

/// The same where all is late, and queues are short.
mod iwarp_late {
    use crate::device::harness_without_accesses;
    link_kit::conform! {
        harness_without_accesses("sv0:iwarp,cqe=512,wr=16,inline=16,sge=1", &[("DELAY_US", "200"), ("REORDER", "7")]);
        frames polls peers ends returns sleep threads frames_only
    }
}

/// The same whose connections are closed as soon as nothing goes by them.
mod iwarp_closing {
    use crate::device::harness_that_closes;
    link_kit::conform! {
        {
            let mut harness = harness_that_closes("sv0:iwarp", &[]);
            harness.caps = link_api::RmaCaps::empty();
            harness
        };
        frames polls peers ends returns sleep threads frames_only
    }
}

/// The checks notice what they are for.
mod flaws {
    use link_kit::{Flaw, Flawed, conformance::regions_in_flight as checks};

    use crate::device::harness;

    #[test]
    #[should_panic(expected = "what was taken back")]
    fn a_region_that_stays_published() {
        let mut flawed = Flawed::new(harness("sv0", &[]), Flaw::KeepsPublishing);
        checks::a_region_that_was_taken_back_is_not_touched(&mut flawed);
    }

    #[test]
    #[should_panic(expected = "a registration that is known")]
    fn versions_that_are_not_told_apart() {
        let mut flawed = Flawed::new(harness("sv0", &[]), Flaw::OneVersionForAll);
        checks::bytes_of_a_region_are_there_when_an_access_is_over(&mut flawed);
    }
}
