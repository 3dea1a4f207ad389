//! Calls in batches, an operator's work and a worker's between them, on one database. What each call must come to the model says.

use crate::arguments;
use crate::engine::{Engine, principal};
use crate::meaning::{TOOLS, rules};
use crate::model::{Expected, Model, takes_key};
use crate::operator::Operator;
use crate::spelling;
use arbitrary::{Result, Unstructured};
use counterfoil::Principal;
use counterfoil::native::{Invocation, Reply};
use counterfoil::serving::describe;
use counterfoil::tools::REGISTRY;
use jsonschema::Validator;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Any bytes.
pub fn run(data: &[u8]) {
    let mut world = World {
        engine: Engine::new(),
        model: Model::default(),
        operator: Operator::default(),
        made: Vec::new(),
        ids: Vec::new(),
    };
    let mut u = Unstructured::new(data);
    for _ in 0..MOST_STEPS {
        // What is too short says less, and is no fault.
        if u.is_empty() || world.step(&mut u).is_err() {
            break;
        }
    }
    world.end();
}

const MOST_STEPS: usize = 16;
const MOST_CALLS: usize = 8;

type Call = (Option<Principal>, Invocation);

struct World {
    engine: Engine,
    model: Model,
    operator: Operator,
    /// Every call so far.
    made: Vec<Call>,
    /// Every id that was answered.
    ids: Vec<String>,
}

thread_local! {
    static SCHEMAS: HashMap<String, Validator> = describe(&REGISTRY)
        .into_iter()
        .filter_map(|tool| {
            let schema: Value = serde_json::from_str(&tool.output_schema).ok()?;
            Some((tool.name, jsonschema::validator_for(&schema).ok()?))
        })
        .collect();
}

impl World {
    fn step(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=9)? {
            0 | 1 => {
                for _ in 0..u.int_in_range(1..=4)? {
                    self.operator.step(u, &mut self.engine, &mut self.model, &self.ids)?;
                }
            }
            2 => {
                let closes = u.arbitrary()?;
                self.engine.again(closes);
            }
            _ => {
                let calls = (0..u.int_in_range(1..=MOST_CALLS)?).map(|_| self.one(u)).collect::<Result<Vec<_>>>()?;
                self.batch(&calls);
            }
        }
        Ok(())
    }

    fn one(&self, u: &mut Unstructured<'_>) -> Result<Call> {
        if !self.made.is_empty() && u.ratio(1, 3)? {
            return self.repeated(u);
        }
        let (tool, rules) = *u.choose(&TOOLS)?;
        let arguments = match u.int_in_range(0..=15)? {
            0 => spelling::text(u)?,
            1 => spelling::value(u, 3)?.to_string(),
            2 => "[".repeat(u.int_in_range(0..=2_000)?),
            _ => {
                let mut fields = arguments::of(u, rules, &self.ids)?;
                arguments::change(u, rules, &mut fields)?;
                spelling::object(u, &fields)?
            }
        };
        let tool = if u.ratio(1, 16)? { spelling::text(u)? } else { tool.to_owned() };
        Ok((caller(u)?, Invocation { tool, arguments }))
    }

    /// An earlier call in other words, mostly by the same caller, sometimes with something changed.
    fn repeated(&self, u: &mut Unstructured<'_>) -> Result<Call> {
        let (who, call) = u.choose(&self.made)?;
        let mut call = call.clone();
        if let (Some(rules), Ok(Value::Object(fields))) = (rules(&call.tool), serde_json::from_str(&call.arguments)) {
            let mut fields = fields.into_iter().collect();
            arguments::change(u, rules, &mut fields)?;
            call.arguments = spelling::object(u, &fields)?;
        }
        let who = if u.ratio(1, 4)? { caller(u)? } else { who.clone() };
        Ok((who, call))
    }

    fn batch(&mut self, calls: &[Call]) {
        let before = self.engine.changes();
        let replies = self.engine.call(calls);
        assert_eq!(replies.len(), calls.len());
        let mut changes_nothing = true;
        for ((who, call), reply) in calls.iter().zip(&replies) {
            let expected = self.model.expect(who.as_ref(), &call.tool, &call.arguments);
            let told = told(call, reply);
            check(&expected, &told, call);
            match (who, &expected) {
                (Some(who), Expected::Fresh) => self.model.keep(who, &call.tool, &call.arguments, &told),
                _ => changes_nothing &= call.tool != "cancel_operation" || reply.refused,
            }
            changes_nothing &= expected != Expected::Fresh;
            for id in ["note_id", "automation_id", "operation_id"].iter().filter_map(|name| told[name].as_str()) {
                if !self.ids.iter().any(|known| known == id) {
                    self.ids.push(id.to_owned());
                }
            }
        }
        if changes_nothing {
            assert_eq!(self.engine.changes(), before, "{calls:?}: {replies:?}");
        }
        self.made.extend_from_slice(calls);
    }

    /// All calls again, each by itself: what was fresh is a replay, and what was refused acts now or is refused as it must be.
    /// Then nothing is wrong with the database.
    fn end(mut self) {
        let made = std::mem::take(&mut self.made);
        for call in made.iter().take(2 * MOST_CALLS) {
            self.batch(std::slice::from_ref(call));
        }
        self.operator.check(&mut self.engine);
        self.engine.assert_whole();
    }
}

fn caller(u: &mut Unstructured<'_>) -> Result<Option<Principal>> {
    const ALL: [&str; 4] = ["read", "write-notes", "write-automations", "deploy"];
    Ok(match u.int_in_range(0..=15)? {
        0 => None,
        1 => Some(principal("ada@acme", &ALL[..1])),
        2 => Some(principal("ada@acme", &ALL[1..])),
        3 => Some(principal("bo@acme", &ALL)),
        4 => Some(principal("ada@other", &ALL)),
        5 => Some(principal(&spelling::text(u)?, &ALL)),
        _ => Some(principal("ada@acme", &ALL)),
    })
}

/// The answer, which is as the tool's schema says, and in the form of all answers.
fn told(call: &Invocation, reply: &Reply) -> Value {
    let told: Value = serde_json::from_str(&reply.body).unwrap_or_else(|error| panic!("{error}: {}", reply.body));
    let fits = SCHEMAS.with(|schemas| schemas.get(&call.tool).is_none_or(|schema| schema.is_valid(&told)));
    assert!(fits, "{told} does not fit the schema of {}", call.tool);
    assert_eq!(told["status"], if reply.refused { "refused" } else { "succeeded" }, "{told}");
    told
}

/// # Panics
///
/// If the answer to the call is another one than what is expected.
pub fn check(expected: &Expected, told: &Value, call: &Invocation) {
    const FORM: [&str; 7] = ["status", "replayed", "code", "message", "retryable", "retry_after_ms", "next_action"];
    match expected {
        Expected::Refused(code) => {
            assert_eq!(told["code"], *code, "{call:?}: {told}");
            assert_eq!((&told["status"], &told["replayed"]), (&json!("refused"), &json!(false)), "{told}");
            let fields = told.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
            assert!(fields.into_iter().all(|name| FORM.contains(&name)), "{told}");
            let message = told["message"].as_str().unwrap_or_default();
            assert!((1..600).contains(&message.chars().count()), "{told}");
        }
        Expected::Fresh => assert_eq!(told["replayed"], false, "{call:?}: {told}"),
        Expected::Replay(reply) => assert_eq!(told, reply, "{call:?}"),
        Expected::Told(fields) => {
            assert_eq!((&told["status"], &told["replayed"]), (&json!("succeeded"), &json!(false)), "{call:?}: {told}");
            for (name, value) in fields {
                assert_eq!(told[name], *value, "{call:?}: {told}");
            }
        }
    }
    let has_receipt = told.get("valid_until").is_some();
    assert_eq!(has_receipt, takes_key(&call.tool) && told["status"] == "succeeded", "{call:?}: {told}");
}
