//! The agent as a process: follows its file, walks pods through their lives in the right order, leaves nothing behind.
#![allow(clippy::panic, reason = "a test says what it saw")]

mod common;

use std::io::Read;
use std::os::unix::fs::MetadataExt;

use common::{Agent, Supervisor, placement, until};
use nova_novalet::history::Step;
use nova_novalet::operator::{Request, Status};
use nova_novalet::pods::Phase as PodPhase;
use nova_proto::control::endpoint_update::Op;
use nova_proto::control::{Phase, State};

fn steps(status: &Status, pod: &str) -> Vec<Step> {
    status.history.iter().filter(|event| event.pod_uid == pod).map(|event| event.step).collect()
}

fn phase(status: &Status, pod: &str) -> Option<PodPhase> {
    status.pods.iter().find(|known| known.status.pod_uid == pod).map(|known| known.status.phase)
}

// covers: A12
#[test]
fn a_file_with_mistakes_starts_nothing_and_all_of_them_are_printed_with_place_and_remedy() {
    let bad = placement("a", "10.64.3.21", "").replace("tenant: t", "tenant: T").replace("port: 443", "port: 0");
    let mut agent = Agent::start(&bad, &[]);
    let code = until("it ends", || agent.child.try_wait().expect("a child"));
    let mut text = String::new();
    agent.child.stderr.take().expect("a pipe").read_to_string(&mut text).expect("text");
    assert!(!code.success());
    for wanted in ["placements.yaml:3:", "placements.yaml:7:", "remedy: ", "nothing was started"] {
        assert!(text.contains(wanted), "{wanted} is missing in\n{text}");
    }
    assert!(!agent.path("control.sock").exists() && !agent.path("guests").exists());
}

// covers: A12
#[tokio::test]
async fn an_edit_with_mistakes_changes_nothing_and_the_next_good_one_does() {
    let good = placement("a", "10.64.3.21", "");
    let agent = Agent::start(&good, &[]);
    agent.eventually("told pending", |status| phase(status, "a") == Some(PodPhase::Pending)).await;
    let before = agent.status().revision;
    agent.write(&format!("{}{}", good.replace("tenant: t", "tenant: T"), placement("b", "10.64.3.300", "")));
    let status = agent.eventually("mistakes seen", |status| !status.mistakes.is_empty()).await;
    assert_eq!(status.mistakes.len(), 2, "{:#?}", status.mistakes);
    assert_eq!((status.revision, status.pods.len()), (before, 1));
    agent.write(&format!("{good}{}", placement("b", "10.64.3.30", "")));
    agent
        .eventually("b is told", |status| status.mistakes.is_empty() && phase(status, "b") == Some(PodPhase::Pending))
        .await;
}

// covers: A2
#[tokio::test]
async fn a_pod_is_pending_until_healthy_ready_until_serving_and_then_running() {
    let agent = Agent::start(&placement("a", "10.64.3.21", ""), &[]);
    agent.eventually("told pending", |status| phase(status, "a") == Some(PodPhase::Pending)).await;
    let folder = agent.path("guests/a");
    assert_eq!(std::fs::metadata(&folder).expect("the pod's folder").mode() & 0o7777, 0o2770);
    let mut supervisor = Supervisor::connect(&agent.path("control.sock"), 0).await;
    let Some(Op::Snapshot(snapshot)) = supervisor.next().await.op else { panic!("a snapshot") };
    let pending = snapshot.endpoints.first().expect("the endpoint").clone();
    assert_eq!((pending.state(), pending.generation, pending.boot_token.len()), (State::Pending, 1, 16));
    supervisor.ack(&pending, Phase::SvidReady).await;
    supervisor.ack(&pending, Phase::Healthy).await;
    let ready = supervisor.upsert().await;
    assert_eq!((ready.state(), ready.boot_token == pending.boot_token), (State::Ready, true));
    assert_eq!(phase(&agent.status(), "a"), Some(PodPhase::Ready), "READY is an order, not a proof");
    supervisor.ack(&ready, Phase::Serving).await;
    let status = agent.eventually("running", |status| phase(status, "a") == Some(PodPhase::Running)).await;
    use Step::{FoldersMade, GuestStarted, Healthy, Pending, Ready, Running};
    assert_eq!(steps(&status, "a"), [FoldersMade, GuestStarted, Pending, Healthy, Ready, Running]);
}

// covers: A2
#[tokio::test]
async fn a_placement_that_goes_is_drained_removed_stopped_and_its_address_rests_in_this_order() {
    let agent = Agent::start(&placement("a", "10.64.3.21", "").replace("300", "60000"), &[]);
    let mut supervisor = Supervisor::connect(&agent.path("control.sock"), 0).await;
    let endpoint = supervisor.first_endpoint().await;
    agent.write(&placement("b", "10.64.3.21", ""));
    let draining = supervisor.upsert().await;
    assert_eq!((draining.state(), draining.generation), (State::Draining, endpoint.generation));
    supervisor.ack(&draining, Phase::DrainingNow).await;
    let status =
        agent.eventually("b waits for the address", |status| phase(status, "b") == Some(PodPhase::WaitingForIp)).await;
    assert_eq!(phase(&status, "a"), Some(PodPhase::Draining));
    supervisor.ack(&draining, Phase::Drained).await;
    assert!(matches!(supervisor.next().await.op, Some(Op::Remove(key)) if key.pod_uid == "a"));
    let next = supervisor.upsert().await;
    assert_eq!((next.pod_uid.as_str(), next.state()), ("b", State::Pending));
    let status = agent.status();
    let of_a = steps(&status, "a");
    use Step::{Drained, Draining, GuestStopped, IpCooling, Removed};
    assert!(of_a.ends_with(&[Draining, Drained, Removed, GuestStopped, IpCooling]), "{of_a:?}");
    let at = |pod: &str, step| {
        status.history.iter().find(|event| event.pod_uid == pod && event.step == step).expect("happened").at_ms
    };
    assert!(at("b", Step::GuestStarted) - at("a", IpCooling) >= 290, "the address rested");
    assert!(!agent.path("guests/a").exists());
}

// covers: A2
#[tokio::test]
async fn a_supervisor_that_never_says_drained_holds_a_pod_only_for_the_drain_time_and_its_margin() {
    let agent = Agent::start(&placement("a", "10.64.3.21", ""), &[]);
    let mut supervisor = Supervisor::connect(&agent.path("control.sock"), 0).await;
    supervisor.first_endpoint().await;
    let reply = agent.ask(&Request::Drain { pod_uid: "a".into() }).expect("drained");
    assert_eq!(reply.pod.expect("the pod").phase, PodPhase::Stopped);
    assert!(steps(&agent.status(), "a").contains(&Step::DrainTimedOut));
    assert!(agent.ask(&Request::Drain { pod_uid: "nobody".into() }).is_err());
}

// covers: A2
#[tokio::test]
async fn a_restart_raises_the_generation_and_changes_the_token_without_a_remove_in_between() {
    let agent = Agent::start(&placement("a", "10.64.3.21", ""), &[]);
    let mut supervisor = Supervisor::connect(&agent.path("control.sock"), 0).await;
    let first = supervisor.first_endpoint().await;
    let run_dir = agent.path("run");
    let asking = tokio::task::spawn_blocking(move || {
        nova_novalet::operator::client::ask(&run_dir, &Request::Restart { pod_uid: "a".into() })
    });
    let draining = supervisor.upsert().await;
    supervisor.ack(&draining, Phase::Drained).await;
    let second = supervisor.upsert().await;
    assert_eq!((second.state(), second.generation), (State::Pending, first.generation + 1));
    assert_ne!(second.boot_token, first.boot_token);
    let pod = asking.await.expect("asked").expect("restarted").pod.expect("the pod");
    assert_eq!((pod.generation, pod.phase), (2, PodPhase::Pending));
}

// covers: A2
#[tokio::test]
async fn an_edit_of_ports_updates_in_place_and_an_edit_of_what_the_guest_learns_at_boot_restarts() {
    let placed = placement("a", "10.64.3.21", "");
    let agent = Agent::start(&placed, &[]);
    let mut supervisor = Supervisor::connect(&agent.path("control.sock"), 0).await;
    supervisor.first_endpoint().await;
    agent.write(&placed.replace("port: 443", "port: 8443"));
    let updated = supervisor.upsert().await;
    assert_eq!((updated.state(), updated.generation, updated.ports[0].port), (State::Pending, 1, 8443));
    agent.write(&placed.replace("target_port: 8080", "target_port: 9090"));
    let draining = supervisor.upsert().await;
    assert_eq!(draining.state(), State::Draining);
    supervisor.ack(&draining, Phase::Drained).await;
    let anew = supervisor.upsert().await;
    assert_eq!((anew.state(), anew.generation, anew.ports[0].target_port), (State::Pending, 2, 9090));
}

// covers: A2
#[tokio::test]
async fn states_of_the_file_are_followed_pending_stays_and_draining_stops() {
    let agent = Agent::start(&placement("a", "10.64.3.21", "    state: pending\n"), &[]);
    let mut supervisor = Supervisor::connect(&agent.path("control.sock"), 0).await;
    let pending = supervisor.first_endpoint().await;
    supervisor.ack(&pending, Phase::Healthy).await;
    agent.write(&placement("a", "10.64.3.21", "    state: draining\n"));
    let draining = supervisor.upsert().await;
    assert_eq!(draining.state(), State::Draining, "it never was READY");
    supervisor.ack(&draining, Phase::Drained).await;
    agent.eventually("stopped", |status| phase(status, "a") == Some(PodPhase::Stopped)).await;
    agent.write(&placement("a", "10.64.3.21", ""));
    agent.eventually("anew", |status| status.pods.iter().any(|pod| pod.status.generation == 2)).await;
}

// covers: A2
#[tokio::test]
async fn stop_drains_everything_and_a_signal_leaves_no_socket() {
    let mut agent = Agent::start(&placement("a", "10.64.3.21", ""), &[]);
    agent.eventually("told pending", |status| phase(status, "a") == Some(PodPhase::Pending)).await;
    agent.ask(&Request::Stop).expect("stopped");
    assert!(until("it ends", || agent.child.try_wait().expect("a child")).success());
    assert!(!agent.path("control.sock").exists() && !agent.path("run/novalet.sock").exists());

    let mut agent = Agent::start(&placement("a", "10.64.3.21", ""), &[]);
    agent.eventually("told pending", |status| phase(status, "a") == Some(PodPhase::Pending)).await;
    signal(&agent, nix::sys::signal::Signal::SIGTERM);
    assert!(until("it ends", || agent.child.try_wait().expect("a child")).success());
    assert!(!agent.path("control.sock").exists() && !agent.path("guests/a").exists());
}

// covers: A12
#[test]
fn a_second_agent_in_the_same_run_dir_is_refused() {
    let agent = Agent::start(&placement("a", "10.64.3.21", ""), &[]);
    agent.status();
    let mut second = std::process::Command::new(env!("CARGO_BIN_EXE_novalet-ref"));
    second.arg("run").arg("--placements").arg(agent.path("placements.yaml"));
    second.arg("--control-socket").arg(agent.path("c2.sock")).arg("--guest-root").arg(agent.path("guests"));
    let output = second.arg("--run-dir").arg(agent.path("run")).args(["--guests", "none"]).output().expect("runs");
    assert!(String::from_utf8_lossy(&output.stderr).contains("novalet-ref stop"), "{output:?}");
    assert_eq!(phase(&agent.status(), "a"), phase(&agent.status(), "a"));
}

fn signal(agent: &Agent, signal: nix::sys::signal::Signal) {
    let pid = i32::try_from(agent.child.id()).expect("a pid");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).expect("sent");
}
