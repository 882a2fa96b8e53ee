//! What the app finds when the supervisor says which CA to trust, and when it does not.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::mpsc::channel;

use common::{data, eventually, free_port};
use nova_proto::hello::{HEAD_LEN, Kind, parse_head};
use nova_proto::trust::encode;
use tempfile::TempDir;

const CA: &str = "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n";
const OTHER: &str = "-----BEGIN CERTIFICATE-----\nBAUG\n-----END CERTIFICATE-----\n";

struct Guest {
    dir: TempDir,
}

impl Guest {
    fn new(script: &str, ports: &[u32]) -> Self {
        let guest = Self { dir: tempfile::tempdir().expect("dir") };
        let config = serde_json::json!({
            "workload": "x", "workload_ip": "10.64.3.11", "boot_token": "a5".repeat(16),
            "link": {"unix": {"dir": guest.dir.path()}}, "host_ports": ports, "guest_port": 15080, "framed": true,
            "proxy_port": free_port(), "trust_dir": guest.path("trust"), "relay": env!("CARGO_BIN_EXE_nova-relay"),
            "command": ["/bin/sh", "-c", script], "env": {"DIR": guest.dir.path(), "JAVA_TOOL_OPTIONS": "-Xmx1g"},
        });
        fs::write(guest.path("guest.json"), config.to_string()).expect("write");
        fs::set_permissions(guest.path("guest.json"), fs::Permissions::from_mode(0o600)).expect("chmod");
        guest
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// An instance of the supervisor that says `pem` and no more. The first question is closed without an answer: not now.
    fn answer(&self, port: u32, pem: &str) {
        let pem = pem.to_owned();
        self.converse(port, move |asked, instance| {
            if asked > 1 {
                instance.say(&pem);
                assert_eq!(instance.hear(), Some(u8::from(!pem.is_empty())), "installed, if there was anything");
                instance.hear();
            }
        });
    }

    /// An instance of the supervisor, as `talk` has it for each question, by its number.
    fn converse(&self, port: u32, talk: impl Fn(usize, &mut Instance) + Send + Sync + 'static) {
        let listener = UnixListener::bind(self.path(&format!("host_{port}"))).expect("bound");
        let talk = Arc::new(talk);
        std::thread::spawn(move || {
            let (mut held, mut asked) = (Vec::new(), 0);
            for mut stream in listener.incoming().flatten() {
                let mut head = [0; HEAD_LEN];
                if stream.read_exact(&mut head).is_err() {
                    continue;
                }
                if parse_head(&head).expect("a hello").kind != Kind::Trust {
                    held.push(stream);
                    continue;
                }
                asked += 1;
                let talk = Arc::clone(&talk);
                std::thread::spawn(move || talk(asked, &mut Instance(stream)));
            }
        });
    }

    fn run(&self) -> Output {
        Command::new("unshare")
            .args(["-Urn", env!("CARGO_BIN_EXE_nova-init"), "--config"])
            .arg(self.path("guest.json"))
            .output()
            .expect("unshare must start")
    }
}

/// One connection of the guest, framed.
struct Instance(UnixStream);

impl Instance {
    fn say(&mut self, pem: &str) {
        let _ = self.0.write_all(&data(&encode(pem).expect("short")));
    }

    /// What became of it; `None` when the guest is gone.
    fn hear(&mut self) -> Option<u8> {
        let mut record = [0; 4];
        self.0.read_exact(&mut record).ok()?;
        assert_eq!(record[..3], [0, 0, 1], "one byte");
        Some(record[3])
    }
}

/// An app that waits until its bundle holds `OTHER`, looking at each moment that it is whole, and ends with 42.
const WAIT: &str = r#"
echo started > $DIR/started
for look in $(seq 2000); do
    bundle=$(cat $SSL_CERT_FILE) || exit 1
    case "$bundle" in *-----BEGIN*-----END*) ;; *) exit 2 ;; esac
    case "$bundle" in *BAUG*) cat $DIR/trust/ca.pem; exit 42 ;; esac
    sleep 0.01
done
exit 3"#;

const LOOK: &str = "env; cat $DIR/trust/ca.pem $SSL_CERT_FILE; exit 42";

// covers: D6d
#[test]
fn without_an_answer_the_app_starts_without_a_ca_and_that_is_said() {
    let guest = Guest::new("env; ls $DIR/trust; exit 42", &[15001]);
    let output = guest.run();
    let (seen, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(42), "{output:?}");
    assert!(!seen.contains("SSL_CERT_FILE") && !seen.contains("NODE_EXTRA_CA_CERTS"), "{seen}");
    assert!(said.contains("did not say in time which CA to trust"), "{said}");
    assert!(!guest.path("trust").exists());
}

// covers: D6d
#[test]
fn where_nothing_is_intercepted_nothing_changes_for_the_app() {
    let guest = Guest::new("env; ls $DIR/trust; exit 42", &[15001]);
    guest.answer(15001, "");
    let output = guest.run();
    let (seen, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(42), "{output:?}");
    assert!(!seen.contains("SSL_CERT_FILE") && seen.contains("JAVA_TOOL_OPTIONS=-Xmx1g"), "{seen}");
    assert!(!said.contains("did not say in time"), "{said}");
    assert!(!guest.path("trust").exists());
}

// covers: D6d
#[test]
fn the_app_finds_the_ca_in_every_form_that_its_programs_read() {
    let guest = Guest::new(LOOK, &[15001]);
    guest.answer(15001, CA);
    let output = guest.run();
    let seen = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(42), "{output:?}");
    let dir = guest.path("trust").display().to_string();
    for variable in [
        "SSL_CERT_FILE",
        "CURL_CA_BUNDLE",
        "REQUESTS_CA_BUNDLE",
        "GIT_SSL_CAINFO",
        "AWS_CA_BUNDLE",
        "PIP_CERT",
        "CARGO_HTTP_CAINFO",
        "npm_config_cafile",
    ] {
        assert!(seen.contains(&format!("{variable}={dir}/bundle.pem\n")), "{variable} in {seen}");
    }
    for variable in ["NODE_EXTRA_CA_CERTS", "DENO_CERT"] {
        assert!(seen.contains(&format!("{variable}={dir}/ca.pem\n")), "{variable} in {seen}");
    }
    let java = format!("-Djavax.net.ssl.trustStore={dir}/truststore.p12 -Djavax.net.ssl.trustStoreType=PKCS12 -Xmx1g");
    assert!(seen.contains(&java), "{seen}");
    assert!(!seen.contains("SSL_CERT_DIR="), "{seen}");
    assert_eq!(seen.matches(CA).count(), 2, "the CA alone, and in the bundle: {seen}");
    let store = fs::read(guest.path("trust/truststore.p12")).expect("there");
    assert!(store.windows(3).any(|bytes| bytes == [1, 2, 3]), "the certificate is in it");
}

// covers: D6d
#[test]
fn each_instance_of_the_supervisor_is_asked_for_its_own_ca() {
    let guest = Guest::new(LOOK, &[15001, 15002]);
    guest.answer(15001, CA);
    guest.answer(15002, OTHER);
    let output = guest.run();
    let seen = String::from_utf8_lossy(&output.stdout);
    assert!(seen.matches(CA).count() == 2 && seen.matches(OTHER).count() == 2, "{output:?}");
}

// covers: D6d
#[test]
fn an_instance_that_is_not_there_does_not_hold_the_app_up() {
    let guest = Guest::new(LOOK, &[15001, 15002]);
    guest.answer(15002, CA);
    let started = std::time::Instant::now();
    let output = guest.run();
    assert_eq!(String::from_utf8_lossy(&output.stdout).matches(CA).count(), 2, "{output:?}");
    assert!(started.elapsed() < std::time::Duration::from_secs(5), "less than the deadline of the first answer");
}

// covers: D6k
#[test]
fn a_ca_that_comes_later_is_installed_while_the_app_runs_and_the_supervisor_hears_of_it() {
    let guest = Guest::new(WAIT, &[15001]);
    let (tell, told) = channel();
    let started = guest.path("started");
    guest.converse(15001, move |asked, instance| {
        assert_eq!(asked, 1, "the connection stays");
        instance.say(CA);
        let first = instance.hear();
        eventually("the app runs", || started.exists().then_some(()));
        instance.say(&format!("{CA}{OTHER}"));
        let _ = tell.send((first, instance.hear()));
    });
    let output = guest.run();
    let seen = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(42), "{output:?}");
    assert_eq!(seen, format!("{CA}{OTHER}"), "both are trusted");
    assert_eq!(told.recv().expect("the instance has heard"), (Some(1), Some(1)));
    let store = fs::read(guest.path("trust/truststore.p12")).expect("there");
    assert!([[1, 2, 3], [4, 5, 6]].iter().all(|bytes| store.windows(3).any(|window| window == bytes)));
}

// covers: D6m
#[test]
fn a_supervisor_that_was_restarted_is_asked_again_and_its_word_replaces_the_old_one() {
    let guest = Guest::new(WAIT, &[15001]);
    let started = guest.path("started");
    guest.converse(15001, move |asked, instance| match asked {
        1 => {
            instance.say(CA);
            instance.hear();
            eventually("the app runs", || started.exists().then_some(()));
        }
        // Not back yet.
        2 | 3 => {}
        _ => {
            instance.say(OTHER);
            instance.hear();
            instance.hear();
        }
    });
    let output = guest.run();
    assert_eq!(output.status.code(), Some(42), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), OTHER, "nobody has the keys of the old one any more");
}

// covers: D6k
#[test]
fn what_comes_for_an_app_that_was_started_without_a_ca_is_not_called_installed() {
    let guest = Guest::new("until [ -e $DIR/over ]; do sleep 0.01; done; ls $DIR/trust; exit 42", &[15001]);
    let (over, (tell, told)) = (guest.path("over"), channel());
    guest.converse(15001, move |_, instance| {
        instance.say("");
        let nothing = instance.hear();
        instance.say(CA);
        let _ = tell.send((nothing, instance.hear()));
        fs::write(&over, "").expect("written");
        instance.hear();
    });
    let output = guest.run();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(told.recv().expect("the instance has heard"), (Some(0), Some(0)));
    assert_eq!(output.status.code(), Some(42), "{output:?}");
    assert!(said.contains("start this guest anew"), "{said}");
    assert!(!guest.path("trust").exists());
}
