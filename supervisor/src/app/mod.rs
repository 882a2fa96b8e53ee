//! Starts everything in the one order that is safe, and stops it in the reverse.
//!
//! ```text
//! route helper -> privileges dropped -> audit log -> data-plane threads -> policy -> control -> admin
//! ```
//! The helper must exist before privileges go, and privileges must go before a thread or a hostile byte comes.

mod data;
mod follow;
mod guests;
mod identity;
mod plane;
pub mod preflight;
mod trust;

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use self::follow::Followed;
use self::trust::Trust;
use crate::accept::Workers;
use crate::admin::{self, AdminHandles, AdminSocket, Check};
use crate::audit::{self, AuditSink};
use crate::bundles::BundleFeed;
use crate::config::{Config, EndpointSource, IdentityConfig, Mode, RouteConfig};
use crate::conn::Registry;
use crate::control::client::{Client, Introduction};
use crate::control::file::FileSource;
use crate::control::{Control, Means, PolicyView, Timing};
use crate::credentials::Credentials;
use crate::dial::{Outside, Parents};
use crate::guestlink::LinkPorts;
use crate::identity::{IdentitySource, PodCas};
use crate::ingress::KnownBy;
use crate::net::guard::AddressGuard;
use crate::net::pressure::Pressure;
use crate::net::privileges;
use crate::net::routes::{RouteHelper, Routes, refuse_forwarding};
use crate::state::budget::Budget;
use crate::state::policy::PolicyCell;
use crate::state::table::EndpointTable;
use crate::sys;
use crate::tls::{Certificates, PeerVerifier, Versions, web_roots_warning};
use crate::tokens::Issuers;

/// Why the supervisor does not start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The route helper.
    #[error("managed routes")]
    Routes(#[from] crate::net::routes::RouteError),
    /// Privileges could not be dropped.
    #[error("dropping privileges")]
    Privileges(#[from] privileges::PrivilegeError),
    /// What [`preflight::mistakes`] found.
    #[error("{}", .0.join("\n"))]
    Mistakes(Vec<String>),
    /// The identity source.
    #[error("identity source")]
    Identity(#[from] crate::identity::IdentityError),
    /// Certificates of ports.
    #[error("[[certificates]]")]
    Certificates(#[source] crate::identity::IdentityError),
    /// What signs the CAs of pods.
    #[error("[interception]")]
    Interception(#[source] crate::identity::IdentityError),
    /// The dev CA's certificate.
    #[error(
        "[identity] bundle_out {path} cannot be written: create its folder for the supervisor's user, or correct the path"
    )]
    BundleOut {
        /// The file.
        path: std::path::PathBuf,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// The keys of an issuer of tokens.
    #[error("[[tokens]]")]
    Tokens(#[from] crate::tokens::KeyError),
    /// The source of credentials.
    #[error("[credentials]")]
    Credentials(#[from] crate::credentials::SourceError),
    /// A parent proxy.
    #[error("[[proxies]]")]
    Proxies(#[from] crate::dial::ParentError),
    /// The bundle store.
    #[error("bundle store")]
    Store(#[from] crate::bundles::StoreError),
    /// The operator's socket.
    #[error("operator's socket")]
    Admin(#[from] admin::SocketError),
    /// The audit log.
    #[error("the audit log {path} cannot be opened; create its folder, or correct [audit] file")]
    Audit {
        /// The file.
        path: std::path::PathBuf,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// The end came while lines could not be written.
    #[error("{lines} lines are missing in the audit log {path}, which could not be written; free space on its disk")]
    Unrecorded {
        /// How many.
        lines: u64,
        /// The file.
        path: std::path::PathBuf,
    },
    /// The end came while a write to the audit log did not return.
    #[error("the last lines of the audit log {0} may be missing: a write to it did not return")]
    AuditStuck(std::path::PathBuf),
    /// Anything of the operating system.
    #[error("{0}")]
    System(&'static str, #[source] io::Error),
}

/// Runs the supervisor until SIGTERM, SIGINT or SIGQUIT.
///
/// # Errors
/// [`AppError`] when something that it cannot do without is missing.
pub fn run(config: Config) -> Result<(), AppError> {
    sys::give_memory_back();
    let files =
        privileges::raise_file_limit().map_err(|error| AppError::System("raising the limit of open files", error))?;
    let budget = Budget::of_files(files);
    let routes = Arc::new(match &config.routes {
        RouteConfig::Managed { subnets } => Routes::Managed(RouteHelper::spawn(subnets)?),
        RouteConfig::External => {
            refuse_forwarding()?;
            Routes::External
        }
        RouteConfig::None => Routes::None,
    });
    privileges::drop(&config.node)?;
    // As the user who will need it all.
    let mistakes = preflight::mistakes(&config);
    if !mistakes.is_empty() {
        return Err(AppError::Mistakes(mistakes));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("control")
        .enable_all()
        .build()
        .map_err(|error| AppError::System("starting the control runtime", error))?;
    let outcome = runtime.block_on(serve(config, budget, routes, runtime.handle().clone()));
    runtime.shutdown_background();
    outcome
}

async fn serve(
    config: Config,
    budget: Arc<Budget>,
    routes: Arc<Routes>,
    handle: tokio::runtime::Handle,
) -> Result<(), AppError> {
    let mut interrupt = watched(SignalKind::interrupt())?;
    let mut terminate = watched(SignalKind::terminate())?;
    // Its default is a dump of memory, which holds keys.
    let mut quit = watched(SignalKind::quit())?;
    tokio::spawn(ignore_hangups(watched(SignalKind::hangup())?));
    // Whoever is watched does not end the process: a file that may not grow is an error of its write, as a full disk is.
    let _file_too_large = watched(SignalKind::from_raw(nix::libc::SIGXFSZ))?;
    let source = identity::open(&config)?;
    let trust = Arc::new(Trust::open(Arc::clone(&source), config.trust.clone())?);
    let (presence_lost, lost_guests) = mpsc::unbounded_channel();
    let certificates = Arc::new(Certificates::open(&config.certificates).map_err(AppError::Certificates)?);
    let verifier = PeerVerifier::with_grace(Arc::clone(trust.cell()), config.trust.peer_grace);
    let tokens = Arc::new(tokens(&config, source.as_ref())?);
    tokio::spawn(Arc::clone(&tokens).follow(crate::tokens::Timing::default()));
    let known_by = KnownBy { verifier, certificates, tokens };
    let pod_cas = Arc::new(identity::pod_cas(&config.interception).map_err(AppError::Interception)?);
    let shared = shared(&config, budget, known_by, pod_cas, presence_lost)?;
    let follower = Arc::clone(&trust);
    let feed = open_feed(&config, &shared, move |policy| follower.follow(Some(policy)))?;
    let (plane, workers) = start_data_plane(&config, &shared, handle)?;
    tokio::spawn(hand_over_lines(Arc::clone(&shared.audit)));
    let control = start_control(&config, &shared, Arc::clone(&source), routes, plane, lost_guests);
    let dir = match &config.identity {
        IdentityConfig::Files { dir, .. } => Some(dir.clone()),
        IdentityConfig::Dev { .. } => None,
    };
    tokio::spawn(trust::watch(Arc::clone(&trust), dir, Arc::clone(&shared.policy), control.clone()));
    let certificates = Followed::certificates(&shared.known_by.certificates);
    let followed = certificates.chain(Followed::proxies(&shared.outside.parents));
    let followed = followed.chain([Followed::interception(&shared.pod_cas)]).collect();
    tokio::spawn(follow::follow(followed));
    let admin = AdminSocket::bind(&config.admin.socket)?;
    let handles = Arc::new(admin_handles(&config, &shared, feed, trust, workers.pressure().clone()));
    tracing::info!(node = %config.node.id, instance = %config.node.instance, admin = %admin.path().display(), "serving");
    let stopped = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = quit.recv() => {}
        }
        tracing::info!("stopping: endpoints drain");
        control.shutdown().await;
    };
    let served = admin::serve(&admin, handles, stopped).await;
    // Last: what the threads have recorded, and not handed over yet, must reach the file.
    workers.stop().await;
    // A panic there is in the log of the supervisor; the lines of the other threads are safe.
    let _ = tokio::spawn(flush(Arc::clone(&shared.audit))).await;
    let recorded = all_recorded(&shared.audit, config.audit.file).inspect_err(|error| tracing::error!("{error}"));
    served.map_err(|error| AppError::System("serving the operator's socket", error))?;
    recorded
}

/// Whether every line reached the file.
fn all_recorded(audit: &AuditSink, path: std::path::PathBuf) -> Result<(), AppError> {
    match audit.flush().map(|held| held + audit.lost()) {
        Some(0) => Ok(()),
        Some(lines) => Err(AppError::Unrecorded { lines, path }),
        None => Err(AppError::AuditStuck(path)),
    }
}

/// The configured issuers, and our own trust domain if its SPIFFE bundle is there.
fn tokens(config: &Config, source: &dyn IdentitySource) -> Result<Issuers, AppError> {
    let guard = AddressGuard::new(config.lab_destinations.clone(), config.resolver.nat64.clone());
    let issuers = Issuers::open(&config.tokens, &guard)?;
    Ok(match &config.identity {
        IdentityConfig::Dev { .. } => issuers,
        IdentityConfig::Files { dir, .. } => {
            issuers.with_svids(source.trust_bundles().trust_domain().as_str(), &dir.join("bundle.json"))?
        }
    })
}

/// The control runtime refuses guests, too, so its thread has lines and counts of its own.
async fn hand_over_lines(audit: Arc<AuditSink>) {
    let mut ticks = tokio::time::interval(audit::FLUSH_EVERY);
    loop {
        ticks.tick().await;
        audit.tick();
    }
}

/// On whatever thread it runs.
async fn flush(audit: Arc<AuditSink>) {
    let _ = audit.flush();
}

/// A terminal that closes, or a tool that wants files read again, is no reason to end: all files are followed anyway.
async fn ignore_hangups(mut hangup: tokio::signal::unix::Signal) {
    while hangup.recv().await.is_some() {
        tracing::info!(
            "SIGHUP changes nothing: files and logs are followed by themselves; SIGTERM ends the supervisor"
        );
    }
}

fn watched(kind: SignalKind) -> Result<tokio::signal::unix::Signal, AppError> {
    signal(kind).map_err(|error| AppError::System("watching for signals", error))
}

fn shared(
    config: &Config,
    budget: Arc<Budget>,
    known_by: KnownBy,
    pod_cas: Arc<PodCas>,
    presence_lost: crate::egress::PresenceLost,
) -> Result<data::Shared, AppError> {
    let audit = AuditSink::open(&config.audit, &config.node)
        .map_err(|source| AppError::Audit { path: config.audit.file.clone(), source })?;
    let credentials = Arc::new(Credentials::open(config.credentials.as_ref())?);
    tokio::spawn(Arc::clone(&credentials).follow());
    Ok(data::Shared {
        endpoints: Arc::new(EndpointTable::within(budget)),
        policy: Arc::<PolicyCell>::default(),
        audit,
        registry: Arc::<Registry>::default(),
        known_by,
        links: LinkPorts { root: config.guests.root.clone(), guest_port: config.guests.guest_port },
        guard: AddressGuard::new(config.lab_destinations.clone(), config.resolver.nat64.clone()),
        resolver: config.resolver.clone(),
        presence_lost,
        credentials,
        outside: outside(config)?,
        pod_cas,
    })
}

fn outside(config: &Config) -> Result<Outside, AppError> {
    let versions = if config.egress.tls12 { Versions::Tls12Too } else { Versions::Tls13 };
    Ok(Outside { parents: Arc::new(Parents::open(&config.egress)?), versions })
}

fn open_feed(
    config: &Config,
    shared: &data::Shared,
    on_activate: impl Fn(&nova_policy::engine::Policy) + Send + Sync + 'static,
) -> Result<Arc<BundleFeed>, AppError> {
    let policy = Arc::clone(&shared.policy);
    let feed = Arc::new(BundleFeed::open(&config.policy, &config.node.id, policy, Box::new(on_activate))?);
    feed.start(SystemTime::now());
    tokio::spawn(Arc::clone(&feed).watch());
    Ok(feed)
}

fn start_data_plane(
    config: &Config,
    shared: &data::Shared,
    handle: tokio::runtime::Handle,
) -> Result<(plane::Plane, Workers), AppError> {
    let for_threads = shared.clone();
    let workers = Workers::start(config.node.workers, move || data::DataService::new(for_threads.clone()))
        .map_err(|error| AppError::System("starting the data plane", error))?;
    let (audit, certificates) = (Arc::clone(&shared.audit), Arc::clone(&shared.known_by.certificates));
    let links = (shared.links.clone(), config.guests.host_port);
    let plane = plane::Plane::new(workers.clone(), audit, links, certificates, handle);
    if config.guests.vsock {
        plane.listen_vsock().map_err(|error| AppError::System("listening on AF_VSOCK", error))?;
    }
    Ok((plane, workers))
}

fn start_control(
    config: &Config,
    shared: &data::Shared,
    identity: Arc<dyn IdentitySource>,
    routes: Arc<Routes>,
    plane: plane::Plane,
    mut lost_guests: mpsc::UnboundedReceiver<(nova_proto::ids::PodUid, u64)>,
) -> Control {
    let timing = Timing::default();
    let (control, service) = Control::new(Means {
        plane: Arc::new(plane),
        identity,
        routes,
        policy: Arc::clone(&shared.policy) as Arc<dyn PolicyView>,
        table: Arc::clone(&shared.endpoints),
        timing,
    });
    tokio::spawn(service);
    let lost = control.clone();
    tokio::spawn(async move {
        while let Some((pod, generation)) = lost_guests.recv().await {
            lost.presence_lost(&pod, generation);
        }
    });
    match &config.endpoints {
        EndpointSource::Control { socket, novalet_uid } => {
            let client = Client {
                socket: socket.clone(),
                novalet_uid: *novalet_uid,
                introduction: Introduction { instance: config.node.instance.clone(), slot: config.node.slot },
                control: control.clone(),
                policy: Arc::clone(&shared.policy) as Arc<dyn PolicyView>,
                timing,
            };
            tokio::spawn(client.run());
        }
        EndpointSource::File { path } => {
            let source = FileSource::new(path.clone(), config.node.id.clone());
            tokio::spawn(source.run(control.clone(), timing.file_poll));
        }
    }
    control
}

fn admin_handles(
    config: &Config,
    shared: &data::Shared,
    feed: Arc<BundleFeed>,
    trust: Arc<Trust>,
    pressure: Pressure,
) -> AdminHandles {
    let (audit, events) = (Arc::clone(&shared.audit), Arc::clone(&shared.audit));
    let certificates = Arc::clone(&shared.known_by.certificates);
    let tokens = Arc::clone(&shared.known_by.tokens);
    let credentials = Arc::clone(&shared.credentials);
    let parents = Arc::clone(&shared.outside.parents);
    let (pod_cas, known) = (Arc::clone(&shared.pod_cas), Arc::clone(&shared.endpoints));
    let mut warnings = Vec::new();
    if config.node.mode == Mode::Dev {
        warnings.push("mode is dev: SVIDs come from an embedded CA that nobody else trusts".to_owned());
    }
    if !config.lab_destinations.is_empty() {
        warnings.push(format!("[lab] allow_destinations opens {:?} in the address guard", config.lab_destinations));
    }
    warnings.extend(web_roots_warning().map(str::to_owned));
    AdminHandles {
        node: config.node.id.clone(),
        endpoints: Arc::clone(&shared.endpoints),
        policy: Arc::clone(&shared.policy),
        feed,
        audit_file: config.audit.file.clone(),
        connections: Arc::clone(&shared.registry),
        abilities: shared.outside.parents.abilities(),
        checks: vec![audit_check(audit), accept_check(pressure)],
        warnings,
        credentials: Arc::clone(&shared.credentials),
        watches: vec![
            Box::new(move || credentials.warnings()),
            Box::new(move || identity::pod_ca_warnings(&pod_cas, &known, SystemTime::now())),
            Box::new(move || certificates.warnings(SystemTime::now())),
            Box::new(move || trust.warnings(SystemTime::now())),
            Box::new(move || tokens.warnings(SystemTime::now())),
            Box::new(move || parents.warnings()),
            Box::new(move || events.events_warning().into_iter().collect()),
        ],
    }
}

fn audit_check(audit: Arc<AuditSink>) -> Check {
    let remedy = "free space on its disk, let the supervisor's user write its folder, or move it with [audit] file";
    let problem = move || {
        let why = audit.problem().filter(|_| !audit.is_writable());
        why.map_or(Ok(()), |why| Err(format!("the audit log cannot be written ({why}): {remedy}")))
    };
    Check { name: "audit", probe: Box::new(problem) }
}

fn accept_check(pressure: Pressure) -> Check {
    let remedy = "connections cannot be accepted: no open files or no memory left; raise the limit of open files \
                  (LimitNOFILE), or lower max_connections of the endpoints";
    Check { name: "accept", probe: Box::new(move || if pressure.is_none() { Ok(()) } else { Err(remedy.to_owned()) }) }
}
