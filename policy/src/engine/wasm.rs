//! The engine for bundles with `policy.wasm`: OPA's own compiler turned the Rego into WebAssembly, wasmtime runs it.
//!
//! Code is shared by all threads; every machine has its own memory with its own copy of the data. Three limits hold
//! whatever the module does: fuel (instructions), time, and memory.

use std::pin::pin;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use aws_lc_rs::digest;
use opa_wasm::{DefaultContext, Runtime};
use serde::{Deserialize, Serialize};
use wasmtime::{Config, Module, Store, StoreLimits, StoreLimitsBuilder};

use super::{Engine, LoadError, Machine, TIME_BUDGET, WASM_ENTRY_POINT, WASM_FILE};
use crate::bundle::Manifest;
use crate::decision::Decision;
use crate::input::Input;

/// Largest module, in bytes; OPA's compiler makes a sixth of a megabyte of our Rego.
const MAX_MODULE: usize = 4 * 1024 * 1024;
/// Instructions of one decision, as wasmtime counts them. See the test for what an honest one takes.
const DECISION_FUEL: u64 = 10_000_000;
/// Instructions between two looks at the clock. An honest decision ends before the first one, so a thread that the
/// system keeps waiting denies nothing.
const TIME_CHECK: u64 = 1_000_000;
/// Instructions and time for reading the data into a machine's memory.
const LOAD_FUEL: u64 = 20_000_000_000;
const LOAD_TIME: Duration = Duration::from_secs(20);
/// Memory of a machine: this much, and so many bytes for every byte of data (measured: 12 to 13).
const MEMORY_BASE: usize = 32 * 1024 * 1024;
const MEMORY_PER_BYTE: usize = 24;

/// Code and data of one bundle.
pub(super) struct Wasm {
    module: Module,
    data: String,
}

impl Wasm {
    pub(super) fn new(wasm: &[u8], manifest: &Manifest, data: String) -> Result<Self, LoadError> {
        let named = |entry: &crate::bundle::WasmModule| {
            entry.entrypoint == WASM_ENTRY_POINT && entry.module.trim_start_matches('/') == WASM_FILE
        };
        if !manifest.wasm.iter().any(named) {
            let why = format!("the manifest does not say that {WASM_FILE} has the entry point {WASM_ENTRY_POINT}");
            return Err(LoadError::Compile(why));
        }
        Ok(Self { module: compile(wasm)?, data })
    }
}

impl Engine for Wasm {
    fn name(&self) -> &'static str {
        "opa-wasm"
    }

    fn machine(&self) -> Result<Box<dyn Machine>, LoadError> {
        let memory = self.data.len().saturating_mul(MEMORY_PER_BYTE).saturating_add(MEMORY_BASE);
        let limits = StoreLimitsBuilder::new().memory_size(memory).memories(1).instances(1).tables(1).build();
        let mut store = Store::new(self.module.engine(), limits);
        store.limiter(|limits| limits);
        let fuelled = store.set_fuel(LOAD_FUEL).and_then(|()| store.fuel_async_yield_interval(Some(TIME_CHECK)));
        fuelled.map_err(|error| LoadError::Compile(error.to_string()))?;
        let data: serde_json::Value =
            serde_json::from_str(&self.data).map_err(|error| LoadError::Data(error.to_string()))?;
        let start = async {
            let runtime = Runtime::new(&mut store, &self.module).await?;
            anyhow::ensure!(
                runtime.entrypoints().contains(WASM_ENTRY_POINT),
                "it has no entry point {WASM_ENTRY_POINT}"
            );
            runtime.with_data(&mut store, &data).await
        };
        let started =
            run(LOAD_TIME, start).ok_or_else(|| LoadError::Compile("it takes too long to start".to_owned()))?;
        let policy = started.map_err(|error| LoadError::Compile(format!("{WASM_FILE}: {error:#}")))?;
        Ok(Box::new(Instance { store, policy }))
    }
}

/// The module of the last bundle, by its hash: all bundles of one release carry the same one, and compiling it takes a
/// tenth of a second.
static LAST: Mutex<Option<(Vec<u8>, Module)>> = Mutex::new(None);

fn compile(wasm: &[u8]) -> Result<Module, LoadError> {
    static SHARED: OnceLock<Result<wasmtime::Engine, String>> = OnceLock::new();
    if wasm.len() > MAX_MODULE {
        return Err(LoadError::Compile(format!("{WASM_FILE} has {} bytes, at most {MAX_MODULE} are read", wasm.len())));
    }
    let engine = SHARED.get_or_init(|| {
        let mut config = Config::new();
        config.consume_fuel(true);
        wasmtime::Engine::new(&config).map_err(|error| error.to_string())
    });
    let engine = engine.as_ref().map_err(|error| LoadError::Compile(error.clone()))?;
    let hash = digest::digest(&digest::SHA256, wasm).as_ref().to_vec();
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, module)) = last.as_ref().filter(|(known, _)| *known == hash) {
        return Ok(module.clone());
    }
    // `from_binary`, so that no text form of WebAssembly is ever read.
    let module =
        Module::from_binary(engine, wasm).map_err(|error| LoadError::Compile(format!("{WASM_FILE}: {error:#}")))?;
    *last = Some((hash, module.clone()));
    Ok(module)
}

struct Instance {
    store: Store<StoreLimits>,
    policy: opa_wasm::Policy<DefaultContext>,
}

/// A row of an answer.
#[derive(Deserialize)]
struct Row<T> {
    result: T,
}

impl Instance {
    fn ask<I: Serialize, T: serde::de::DeserializeOwned>(&mut self, input: &I) -> Option<T> {
        self.store.set_fuel(DECISION_FUEL).ok()?;
        let answer = self.policy.evaluate::<_, Vec<Row<T>>, _>(&mut self.store, WASM_ENTRY_POINT, input);
        // No row means undefined, more than one cannot be.
        let [row] = <[Row<T>; 1]>::try_from(run(TIME_BUDGET, answer)?.ok()?).ok()?;
        Some(row.result)
    }
}

impl Machine for Instance {
    fn decide(&mut self, input: &Input) -> Option<Decision> {
        self.ask(input)
    }

    fn answer(&mut self, input: &serde_json::Value) -> Option<serde_json::Value> {
        self.ask(input)
    }
}

/// Runs a future that only waits for itself: it yields after every [`TIME_CHECK`] instructions. `None` when the time is
/// up.
fn run<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    let start = Instant::now();
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return Some(value),
            Poll::Pending if start.elapsed() >= time => return None,
            Poll::Pending => {}
        }
    }
}

#[cfg(test)]
mod tests;
