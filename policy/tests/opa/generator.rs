//! Random rule sets with overlapping ranges, suffixes and prefixes, every form of a caller and of a condition, and hostile
//! peers: regorus, wasm, the native judge behind `explain` and real OPA must agree on every input.

use std::time::{Duration, Instant};

use nova_policy::{Decision, Evaluator, Input, explain};

use crate::opa;
use crate::random_inputs::input;
use crate::random_rules::{rules, workloads};
use crate::worlds::{REGO, World, data};

/// Inputs that real OPA is asked.
const INPUTS: usize = 10_000;
const INPUTS_OF_ONE_SET: usize = 200;
/// More than the whole takes on a slow machine; an OPA that hangs must not hang the tests.
const AT_MOST: Duration = Duration::from_secs(300);

/// xorshift64*: the same inputs on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let value = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(value).unwrap_or(0) % end
    }

    pub(crate) fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    pub(crate) fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }
}

/// Asks `inputs` inputs about random rule sets; `other` gets each set's data first and then answers each input.
fn compare(mut other: impl FnMut(&World, &[Input]) -> Vec<Decision>, inputs: usize, seed: u64) {
    let mut random = Random(seed);
    let workloads = workloads();
    let start = Instant::now();
    let (mut asked, mut allowed) = (0, 0);
    while asked < inputs {
        assert!(start.elapsed() < AT_MOST, "{asked} inputs after {AT_MOST:?}");
        let rules = rules(&mut random);
        let world = World::new(data(&rules, &workloads, "node-1"));
        let batch: Vec<Input> = (0..INPUTS_OF_ONE_SET).map(|_| input(&mut random)).collect();
        let (mut rego, mut wasm) = (Evaluator::new(), Evaluator::new());
        for (input, other) in batch.iter().zip(other(&world, &batch)) {
            let shown = || format!("{}\n{rules}", serde_json::to_string(input).unwrap_or_default());
            let native = explain(&world.rego, input).decision;
            assert_eq!(rego.decide(&world.rego, input), native, "regorus and judge: {}", shown());
            assert_eq!(wasm.decide(&world.wasm, input), native, "opa-wasm and judge: {}", shown());
            assert_eq!(other, native, "the other and judge: {}", shown());
            allowed += usize::from(native.allow);
        }
        asked += batch.len();
    }
    println!("{asked} inputs, {allowed} allowed, {:.0} s", start.elapsed().as_secs_f64());
    assert!(
        allowed * 33 > asked && allowed * 2 < asked,
        "{allowed} of {asked} allowed: the generator asks the wrong things"
    );
}

// covers: B5d
#[test]
fn the_engines_agree_on_random_rules_and_hostile_peers() {
    let judge = |world: &World, batch: &[Input]| {
        batch.iter().map(|input| explain(&world.wasm, input).decision).collect::<Vec<_>>()
    };
    compare(judge, INPUTS, 0x6e6f_7661);
}

// covers: B5d
#[test]
fn real_opa_agrees_on_ten_thousand_random_inputs() {
    let Some(program) = opa::program() else { return };
    let dir = tempfile::tempdir().expect("temp dir");
    let server = opa::Server::start(&program, dir.path(), &[REGO]).expect("OPA serves");
    let real = |world: &World, batch: &[Input]| {
        server.client().put_data("nova", &world.data).expect("OPA takes the data");
        let remote = world.rego.with_opa_server(&server.socket);
        let mut evaluator = Evaluator::new();
        batch.iter().map(|input| evaluator.decide(&remote, input)).collect::<Vec<_>>()
    };
    compare(real, INPUTS, 0x6f70_6121);
}
