//! Every client that is known to us, with the hints it sends, and what it must find in the answer.

use libfabric_sys::*;

use super::answer::{Offer, PROTOCOL, answer, is_allocated, mr_semantics};
use super::caps::PRIMARY;
use super::hints::{Hints, Object};
use super::refusal::Refusal;

const BASIC_MAP: i32 = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
const ATOMIC_ORDERS: u64 =
    FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;

fn hints(caps: u64) -> Hints {
    let mut h = Hints { caps, ..Hints::default() };
    h.ep.kind = FI_EP_RDM;
    h
}

fn offer(h: &Hints, api: (u32, u32)) -> Offer {
    answer(Some(h), FI_VERSION(api.0, api.1)).unwrap_or_else(|r| panic!("refused: {r:?}"))
}

fn refused(h: &Hints) -> Refusal {
    answer(Some(h), FI_VERSION(1, 21)).expect_err("an answer to what is not offered")
}

/// FI_XPU is offered if the hints have it, to versions that know it.
#[test]
fn fi_xpu_is_offered_on_request_to_versions_that_have_it() {
    let mut h = hints(FI_MSG | FI_RMA | FI_XPU);
    let o = offer(&h, (2, 7));
    assert_eq!(o.caps & (FI_XPU | PRIMARY), FI_XPU | FI_MSG | FI_RMA);
    // Of older versions the bit is FI_XPU_TRIGGER, or nothing.
    assert_eq!(answer(Some(&h), FI_VERSION(2, 6)).expect_err("it was offered").what, "capabilities");
    h.caps &= !FI_XPU;
    assert_eq!(offer(&h, (2, 7)).caps & FI_XPU, 0);
    assert_eq!(answer(None, FI_VERSION(2, 7)).unwrap().caps & FI_XPU, 0);
}

#[test]
fn open_mpi_mtl() {
    let mut h = hints(FI_MSG | FI_TAGGED | FI_LOCAL_COMM | FI_REMOTE_COMM | FI_DIRECTED_RECV);
    h.tx.msg_order = FI_ORDER_SAS;
    h.rx.msg_order = FI_ORDER_SAS;
    h.tx.op_flags = FI_COMPLETION;
    h.rx.op_flags = FI_COMPLETION;
    h.domain.models.threading = FI_THREAD_DOMAIN;
    h.domain.av_type = FI_AV_MAP;
    h.domain.cq_data_size = 4;
    h.domain.mr_mode = FI_MR_ALLOCATED;
    let o = offer(&h, (1, 18));
    assert_eq!(o.caps & PRIMARY, FI_MSG | FI_TAGGED | FI_DIRECTED_RECV);
    assert_eq!(o.caps & h.caps, h.caps);
    assert_eq!((o.models.threading, o.av_type), (FI_THREAD_DOMAIN, FI_AV_MAP));
    assert_eq!(o.mr_mode & !FI_MR_ALLOCATED, 0);
    assert_eq!(o.mem_tag_format, u64::MAX);
    assert!(o.cq_data_size >= 4);
    assert_eq!(o.rx.op_flags, FI_COMPLETION);
    // It asks with device memory first, and then without.
    h.caps |= FI_HMEM;
    h.domain.mr_mode |= FI_MR_HMEM;
    assert_eq!(refused(&h).what, "capabilities");
    h.devices = true;
    let o = offer(&h, (1, 18));
    assert_eq!((o.caps & FI_HMEM, o.tx.caps & FI_HMEM, o.rx.caps & FI_HMEM), (FI_HMEM, FI_HMEM, FI_HMEM));
    assert_eq!(o.mr_mode & FI_MR_HMEM, 0, "a device's buffer needs no registration");
    // MPI_THREAD_MULTIPLE, and Open MPI 4.1.
    h.caps = FI_TAGGED | FI_LOCAL_COMM | FI_REMOTE_COMM | FI_DIRECTED_RECV;
    h.domain.models.threading = FI_THREAD_SAFE;
    let o = offer(&h, (1, 5));
    assert_eq!(o.models.threading, FI_THREAD_SAFE);
    assert_eq!(o.caps & FI_MSG, 0);
}

#[test]
fn segments() {
    let all = answer(None, FI_VERSION(2, 1)).unwrap();
    assert_eq!((all.tx.iov_limit, all.tx.rma_iov_limit, all.rx.iov_limit), (8, 8, 8));
    let mut h = hints(FI_MSG | FI_RMA);
    let o = offer(&h, (2, 1));
    assert_eq!((o.tx.iov_limit, o.tx.rma_iov_limit, o.rx.iov_limit), (4, 4, 4));
    h.tx.iov_limit = 5;
    h.rx.iov_limit = 8;
    let o = offer(&h, (2, 1));
    assert_eq!((o.tx.iov_limit, o.tx.rma_iov_limit, o.rx.iov_limit), (8, 4, 8));
}

#[test]
fn memory_stays_where_the_mode_says_so() {
    assert!(is_allocated(FI_MR_BASIC) && is_allocated(BASIC_MAP) && is_allocated(FI_MR_ALLOCATED));
    assert!(!is_allocated(0) && !is_allocated(FI_MR_SCALABLE) && !is_allocated(FI_MR_VIRT_ADDR));
    // Whatever else is offered, but not where this mode is not.
    for more in [0, FI_MR_LOCAL, FI_MR_LOCAL | FI_MR_HMEM, FI_MR_ENDPOINT] {
        let mut h = hints(FI_RMA);
        h.domain.mr_mode = more | FI_MR_ALLOCATED;
        assert!(is_allocated(offer(&h, (1, 18)).mr_mode));
        h.domain.mr_mode = more | FI_MR_VIRT_ADDR;
        assert!(!is_allocated(offer(&h, (1, 18)).mr_mode));
    }
}

#[test]
fn open_mpi_btl() {
    for more in [0, FI_MSG] {
        let mut h = hints(FI_RMA | FI_ATOMIC | more);
        h.domain.mr_mode = BASIC_MAP | FI_MR_ENDPOINT;
        h.domain.av_type = FI_AV_MAP;
        h.tx.op_flags = FI_DELIVERY_COMPLETE;
        h.tx.iov_limit = 1;
        h.rx.iov_limit = 1;
        let o = offer(&h, (1, 18));
        assert_eq!(o.caps & PRIMARY, FI_RMA | FI_ATOMIC | more);
        assert_eq!(o.mr_mode, BASIC_MAP);
        assert_eq!(o.tx.op_flags, FI_DELIVERY_COMPLETE);
        assert!(o.mr_key_size >= 8, "keys are pointers");
    }
}

#[test]
fn mpich() {
    // Everything we say without hints comes back as hints.
    let first = answer(None, FI_VERSION(2, 5)).unwrap();
    assert_eq!(first.mr_mode, 0);
    assert_eq!(first.tx.msg_order & ATOMIC_ORDERS, ATOMIC_ORDERS);
    assert_eq!(first.caps & FI_NAMED_RX_CTX, 0);
    let mut h = hints(first.caps);
    h.tx.op_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
    h.rx.op_flags = FI_COMPLETION;
    h.tx.msg_order = FI_ORDER_SAS | ATOMIC_ORDERS;
    h.rx.msg_order = FI_ORDER_SAS;
    h.domain.models.threading = FI_THREAD_DOMAIN;
    h.domain.models.data_progress = FI_PROGRESS_MANUAL;
    h.domain.models.control_progress = FI_PROGRESS_MANUAL;
    h.domain.av_type = FI_AV_TABLE;
    h.domain.mr_mode = FI_MR_ENDPOINT;
    h.domain.cq_data_size = 4;
    h.ep.mem_tag_format = 0x00c0_0000_7fff_ffff;
    let o = offer(&h, (2, 5));
    assert_eq!(o.caps, first.caps);
    assert_eq!((o.models.threading, o.av_type, o.mr_mode), (FI_THREAD_DOMAIN, FI_AV_TABLE, 0));
    assert_eq!(o.models.data_progress, FI_PROGRESS_MANUAL);
    assert_eq!(o.tx.msg_order, FI_ORDER_SAS | ATOMIC_ORDERS);
    for cap in [FI_MULTI_RECV, FI_MSG, FI_TAGGED, FI_DIRECTED_RECV, FI_RMA, FI_ATOMIC] {
        assert_ne!(o.caps & cap, 0);
    }
}

#[test]
fn intel_mpi() {
    // Version 0 and no hints: the vocabulary from before 1.5.
    let first = answer(None, 0).unwrap();
    assert_eq!(first.mr_mode, FI_MR_SCALABLE);
    let mut h = hints(first.caps);
    h.tx.op_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
    h.tx.msg_order = FI_ORDER_SAS | ATOMIC_ORDERS;
    h.domain.models.threading = FI_THREAD_DOMAIN;
    h.domain.models.data_progress = FI_PROGRESS_MANUAL;
    h.domain.mr_mode = BASIC_MAP;
    for av in [FI_AV_MAP, FI_AV_TABLE] {
        h.domain.av_type = av;
        let o = offer(&h, (1, 5));
        assert_eq!((o.av_type, o.mr_mode & !BASIC_MAP), (av, 0));
    }
}

#[test]
fn sandia_openshmem() {
    let mut h = hints(FI_RMA | FI_ATOMIC | FI_RMA_EVENT | FI_FENCE);
    h.tx.op_flags = FI_DELIVERY_COMPLETE;
    h.domain.models.data_progress = FI_PROGRESS_AUTO;
    h.domain.av_type = FI_AV_TABLE;
    h.domain.models.threading = FI_THREAD_COMPLETION;
    let o = offer(&h, (1, 5));
    assert_eq!((o.mr_mode, o.models.data_progress), (0, FI_PROGRESS_AUTO));
    assert_eq!(mr_semantics(o.mr_mode), (false, false));
    assert_eq!(o.models.threading, FI_THREAD_COMPLETION);
    assert_eq!(o.caps & h.caps, h.caps);
    assert!(o.tx.inject_size >= 16);
    h.tx.inject_size = 9000;
    assert_eq!(offer(&h, (1, 5)).tx.inject_size, 9000);
    h.tx.inject_size = 0;
    h.domain.mr_mode = BASIC_MAP;
    h.domain.models.data_progress = FI_PROGRESS_MANUAL;
    assert_eq!(mr_semantics(offer(&h, (1, 5)).mr_mode), (true, true));
}

#[test]
fn aws_ofi_nccl() {
    let mut h = hints(FI_TAGGED | FI_MSG | FI_LOCAL_COMM | FI_REMOTE_COMM);
    h.tx.msg_order = FI_ORDER_SAS;
    h.rx.msg_order = FI_ORDER_SAS;
    h.domain.mr_mode = BASIC_MAP | FI_MR_LOCAL | FI_MR_ENDPOINT | FI_MR_HMEM;
    h.domain.models.threading = FI_THREAD_SAFE;
    let o = offer(&h, (1, 6));
    assert_eq!(o.mr_mode & (FI_MR_LOCAL | FI_MR_ENDPOINT | FI_MR_HMEM), 0);
    assert!(o.mem_tag_format.leading_zeros() < 31);
    let mut h = hints(FI_MSG | FI_RMA);
    h.domain.mr_mode = BASIC_MAP | FI_MR_LOCAL;
    h.domain.models.threading = FI_THREAD_COMPLETION;
    h.domain.cq_data_size = 4;
    offer(&h, (1, 20));
}

#[test]
fn nvshmem_wants_provider_keys() {
    for (caps, mr_mode) in [
        (FI_RMA | FI_ATOMIC, BASIC_MAP),
        (FI_RMA | FI_ATOMIC | FI_FENCE, FI_MR_ENDPOINT | FI_MR_ALLOCATED | FI_MR_PROV_KEY),
        (FI_RMA | FI_MSG | FI_SOURCE, BASIC_MAP | FI_MR_LOCAL | FI_MR_HMEM),
    ] {
        let mut h = hints(caps);
        h.domain.mr_mode = mr_mode;
        h.domain.models.threading = FI_THREAD_SAFE;
        h.tx.op_flags = FI_DELIVERY_COMPLETE;
        assert_ne!(offer(&h, (1, 5)).mr_mode & FI_MR_PROV_KEY, 0);
    }
}

#[test]
fn nixl() {
    let mut h = hints(FI_MSG | FI_RMA | FI_LOCAL_COMM | FI_REMOTE_COMM);
    h.domain.mr_mode = FI_MR_BASIC | FI_MR_SCALABLE;
    offer(&h, (1, 18));
    h.domain.mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED;
    h.domain.models.threading = FI_THREAD_COMPLETION;
    h.domain.name = Some("strait".into());
    let (virt_addr, prov_key) = mr_semantics(offer(&h, (1, 18)).mr_mode);
    assert!(!virt_addr && !prov_key, "it gives offsets and its own keys");
    h.caps |= FI_HMEM;
    assert_eq!(refused(&h).what, "capabilities");
}

#[test]
fn gasnet() {
    let mut h = hints(FI_RMA | FI_MSG | FI_MULTI_RECV);
    h.domain.models.threading = FI_THREAD_SAFE;
    h.domain.models.control_progress = FI_PROGRESS_MANUAL;
    h.domain.mr_mode = BASIC_MAP | FI_MR_ENDPOINT;
    h.tx.op_flags = FI_DELIVERY_COMPLETE;
    let o = offer(&h, (1, 9));
    assert_ne!(o.caps & FI_MULTI_RECV, 0);
    h.domain.mr_mode &= !FI_MR_PROV_KEY;
    assert_eq!(offer(&h, (1, 9)).mr_mode & FI_MR_PROV_KEY, 0);
}

#[test]
fn mercury() {
    let mut h = hints(FI_MSG | FI_TAGGED | FI_RMA | FI_DIRECTED_RECV | FI_MULTI_RECV | FI_SOURCE);
    h.tx.op_flags = FI_INJECT_COMPLETE;
    h.domain.mr_mode = FI_MR_BASIC | FI_MR_LOCAL | FI_MR_ENDPOINT;
    h.domain.models.threading = FI_THREAD_SAFE;
    assert_eq!(offer(&h, (1, 20)).mr_mode, 0);
    h.ep.protocol = FI_PROTO_XNET;
    assert_eq!(refused(&h).what, "protocol");
    h.ep.protocol = PROTOCOL;
    offer(&h, (1, 20));
}

#[test]
fn fabtests_and_pingpong() {
    let mut h = hints(FI_MSG);
    h.domain.mr_mode = !(FI_MR_BASIC | FI_MR_SCALABLE);
    h.tx.tclass = FI_TC_LOW_LATENCY;
    h.domain.tclass = FI_TC_BULK_DATA;
    let o = offer(&h, (1, 21));
    assert_eq!((o.tx.tclass, o.tclass), (FI_TC_LOW_LATENCY, FI_TC_BULK_DATA));
    assert_eq!(o.mr_mode & !h.domain.mr_mode, 0);
    h.domain.mr_mode = FI_MR_LOCAL | FI_MR_ENDPOINT | FI_MR_RAW | BASIC_MAP;
    assert_eq!(offer(&h, (1, 21)).mr_mode, FI_MR_ALLOCATED, "multi_mr addresses by offset whatever we say");
    h.caps = FI_RMA;
    h.tx.msg_order = FI_ORDER_RAW;
    let max = offer(&h, (1, 21)).max_order_size[0];
    h.ep.max_order_raw_size = max - 1;
    assert_eq!(offer(&h, (1, 21)).max_order_size[0], max - 1);
    h.ep.max_order_raw_size = max + 1;
    refused(&h);
}

#[test]
fn what_is_not_there_is_refused() {
    let with = |f: &dyn Fn(&mut Hints)| {
        let mut h = hints(FI_MSG);
        f(&mut h);
        refused(&h).what
    };
    assert_eq!(with(&|h| h.ep.kind = FI_EP_MSG), "endpoint type");
    assert_eq!(with(&|h| h.ep.kind = FI_EP_DGRAM), "endpoint type");
    assert_eq!(with(&|h| h.caps |= FI_SHARED_AV), "capabilities");
    assert_eq!(with(&|h| h.caps |= FI_MULTICAST), "capabilities");
    assert_eq!(with(&|h| h.tx.inject_size = (16 << 10) + 1), "inject_size");
    assert_eq!(with(&|h| h.tx.iov_limit = 9), "transmit iov_limit");
    assert_eq!(with(&|h| h.tx.comp_order = FI_ORDER_STRICT), "transmit comp_order");
    assert_eq!(with(&|h| h.tx.msg_order = FI_ORDER_RAS), "transmit msg_order");
    assert_eq!(with(&|h| h.ep.tx_ctx_cnt = FI_SHARED_CONTEXT), "tx_ctx_cnt");
    assert_eq!(with(&|h| h.ep.rx_ctx_cnt = 2), "rx_ctx_cnt");
    assert_eq!(with(&|h| h.domain.caps = FI_SHARED_AV), "domain capabilities");
    assert_eq!(with(&|h| h.domain.cq_data_size = 9), "cq_data_size");
    assert_eq!(
        with(&|h| h.domain.name = Some("lo".into())),
        "the hints name another fabric or domain (both are called \"strait\")"
    );
    assert!(with(&|h| h.domain.object = Object::Foreign).contains("another provider's"));
    assert_eq!(with(&|h| h.fabric.prov_version = crate::version::VERSION + 1), "provider version");
    let mut h = hints(FI_MSG);
    h.ep.rx_ctx_cnt = FI_SHARED_CONTEXT;
    assert_eq!(offer(&h, (1, 21)).rx_ctx_cnt, FI_SHARED_CONTEXT);
}

#[test]
fn numbers_that_name_no_choice_are_refused() {
    let refused_for = |f: &dyn Fn(&mut Hints, u32)| {
        let last = |n| {
            let mut h = hints(FI_MSG);
            f(&mut h, n);
            answer(Some(&h), FI_VERSION(2, 1)).err().map(|r| r.what)
        };
        // The last that there is goes through, the next one does not.
        let first = (0..8).position(|n| last(n).is_some()).expect("any number went through") as u32;
        assert!((first..8).chain([1 << 31, u32::MAX]).all(|n| last(n) == last(first)));
        (last(first).unwrap(), first - 1)
    };
    assert_eq!(refused_for(&|h, n| h.domain.resource_mgmt = n), ("resource_mgmt", FI_RM_ENABLED));
    assert_eq!(refused_for(&|h, n| h.domain.models.threading = n), ("threading", FI_THREAD_ENDPOINT));
    assert_eq!(refused_for(&|h, n| h.domain.av_type = n), ("av_type", FI_AV_TABLE));
    assert_eq!(refused_for(&|h, n| h.domain.models.data_progress = n), ("data_progress", FI_PROGRESS_MANUAL));
    let control = refused_for(&|h, n| h.domain.models.control_progress = n);
    assert_eq!(control, ("control_progress", FI_PROGRESS_CONTROL_UNIFIED));
    for (tclass, there) in [
        (FI_TC_UNSPEC, true),
        (FI_TC_DSCP | 46, true),
        (FI_TC_NETWORK_CTRL, true),
        (7, false),
        (FI_TC_DSCP | FI_TC_LABEL, false),
        (1 << 31, false),
    ] {
        let (mut of_queue, mut of_domain) = (hints(FI_MSG), hints(FI_MSG));
        (of_queue.tx.tclass, of_domain.domain.tclass) = (tclass, tclass);
        for h in [of_queue, of_domain] {
            let why = answer(Some(&h), FI_VERSION(2, 1)).err().map(|r| r.what);
            assert_eq!(why, (!there).then_some("tclass"), "{tclass:#x}");
        }
    }
}

#[test]
fn an_answer_has_a_capability_that_moves_data_and_all_that_was_asked_for() {
    for (asked, given) in [
        (FI_SEND, FI_MSG | FI_TAGGED),
        (FI_RECV | FI_MULTI_RECV, FI_MSG | FI_TAGGED),
        (FI_READ, FI_RMA | FI_ATOMIC),
        (FI_REMOTE_WRITE | FI_RMA_EVENT, FI_RMA | FI_ATOMIC),
        (FI_SEND | FI_WRITE, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC),
        (FI_SOURCE, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV),
        (FI_LOCAL_COMM | FI_FENCE, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV),
        (FI_DIRECTED_RECV, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV),
        (FI_RMA | FI_SOURCE, FI_RMA),
    ] {
        let o = offer(&hints(asked), (2, 1));
        assert_eq!((o.caps & PRIMARY, o.caps & asked), (given, asked), "{asked:#x}");
        assert_ne!(o.tx.caps | o.rx.caps, 0);
    }
    let o = offer(&hints(FI_SEND), (2, 1));
    assert_eq!((o.caps & FI_RECV, o.tx.caps & FI_SEND, o.rx.caps & FI_RECV), (0, FI_SEND, 0));
}

#[test]
fn order_is_what_was_asked_for() {
    let mut h = hints(FI_MSG | FI_RMA);
    assert_eq!(offer(&h, (1, 21)).tx.msg_order, FI_ORDER_SAS);
    h.tx.msg_order = FI_ORDER_WAW;
    let o = offer(&h, (1, 21));
    assert_eq!((o.tx.msg_order, o.rx.msg_order), (FI_ORDER_SAS | FI_ORDER_WAW, FI_ORDER_SAS));
}

#[test]
fn old_registration_modes_are_answered_in_kind() {
    let mut h = hints(FI_RMA);
    for (api, asked, given) in [
        ((1, 4), FI_MR_UNSPEC, FI_MR_SCALABLE),
        ((1, 4), FI_MR_BASIC, FI_MR_BASIC),
        ((1, 4), FI_MR_SCALABLE, FI_MR_SCALABLE),
        ((1, 21), FI_MR_BASIC, FI_MR_BASIC),
        ((1, 21), FI_MR_SCALABLE, FI_MR_SCALABLE),
        ((1, 21), FI_MR_UNSPEC, FI_MR_UNSPEC),
        ((1, 21), FI_MR_LOCAL | FI_MR_RAW | FI_MR_ENDPOINT, 0),
    ] {
        h.domain.mr_mode = asked;
        assert_eq!(offer(&h, api).mr_mode, given, "{api:?} {asked}");
    }
    assert_eq!(mr_semantics(FI_MR_BASIC), (true, true));
    assert_eq!(mr_semantics(FI_MR_SCALABLE), (false, false));
}
