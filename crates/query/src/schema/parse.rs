//! Parsing schemas.

use sheaf_bson::{Element, MAX_DEPTH, OwnedValue, RawDoc, Type, Value, number};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_meter::ALLOCATION;

use super::check::same;
use super::encrypt;
use super::rule::{Allowed, Dependency, Rule, Schema};
use crate::matcher::{Regex, TypeSet, non_negative, parse_type_set};
use crate::owned::{name_bytes, own};
use crate::ticks::try_any;

/// Keywords that have an effect, in the order in which mongod reads them, which decides of several errors.
const KEYWORDS: &[&str] = &[
    "type",
    "bsonType",
    "pattern",
    "maxLength",
    "minLength",
    "multipleOf",
    "maximum",
    "minimum",
    "minItems",
    "maxItems",
    "uniqueItems",
    "items",
    "additionalItems",
    "encryptMetadata",
    "encrypt",
    "required",
    "properties",
    "patternProperties",
    "additionalProperties",
    "minProperties",
    "maxProperties",
    "dependencies",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "enum",
];

/// Keywords without a rule of their own.
const MODIFIERS: &[&str] = &["exclusiveMaximum", "exclusiveMinimum", "title", "description"];

/// Keywords of JSON Schema that MongoDB names in its refusal.
const UNSUPPORTED: &[&str] = &["$ref", "$schema", "default", "definitions", "format", "id"];

/// What a rule takes: a list of one has room for four.
const RULE_BYTES: usize = 4 * size_of::<Rule>() + ALLOCATION;

/// Where a schema stands.
#[derive(Clone, Copy)]
struct Place {
    depth: usize,
    /// Whether it is about the document itself, as its parts in `allOf`, `not` and their like are.
    whole: bool,
    /// Whether it may say what is encrypted.
    encryption: bool,
}

pub(super) fn root(schema: RawDoc<'_>, encryption: bool) -> Result<Schema> {
    parse(schema, Place { depth: 0, whole: true, encryption })
}

fn parse(source: RawDoc<'_>, place: Place) -> Result<Schema> {
    if place.depth > MAX_DEPTH {
        bail!(Code::OVERFLOW, "Maximum number of nested $jsonSchema levels exceeded: {MAX_DEPTH}");
    }
    sheaf_meter::tick(8)?;
    check_keywords(source)?;
    // Each level keeps its own copy.
    sheaf_meter::grow(size_of::<Schema>() + source.len() + ALLOCATION)?;
    let mut rules = Vec::new();
    for keyword in KEYWORDS {
        if let Some(element) = source.element(keyword) {
            sheaf_meter::grow(RULE_BYTES)?;
            rules.extend(Parser { source, keyword, element, place }.rule()?);
        } else {
            check_bound_of(keyword, source)?;
        }
    }
    // A document is an object: where another type is asked for, nothing else counts.
    let impossible = |rule: &Rule| match rule {
        Rule::Type { types, .. } => !types.contains(Type::Document),
        rule => matches!(rule, Rule::Encrypt(_)),
    };
    if place.whole && rules.iter().any(impossible) {
        rules = vec![Rule::Never];
    }
    rules.sort_by_key(Rule::rank);
    Ok(Schema { source: source.into(), rules })
}

/// The keyword that makes a bound exclusive, if the keyword is a bound.
fn exclusive_of(keyword: &str) -> Option<&'static str> {
    match keyword {
        "maximum" => Some("exclusiveMaximum"),
        "minimum" => Some("exclusiveMinimum"),
        _ => None,
    }
}

/// What makes a bound exclusive wants the bound.
fn check_bound_of(keyword: &str, source: RawDoc<'_>) -> Result<()> {
    match exclusive_of(keyword).filter(|exclusive| source.element(exclusive).is_some()) {
        Some(exclusive) => bail!(
            Code::FAILED_TO_PARSE,
            "$jsonSchema keyword '{keyword}' must be a present if {exclusive} is present"
        ),
        None => Ok(()),
    }
}

fn check_keywords(source: RawDoc<'_>) -> Result<()> {
    let mut seen = Vec::new();
    for element in source.iter() {
        let keyword = element.key();
        if UNSUPPORTED.contains(&keyword) {
            bail!(Code::FAILED_TO_PARSE, "$jsonSchema keyword '{keyword}' is not currently supported");
        }
        if !KEYWORDS.contains(&keyword) && !MODIFIERS.contains(&keyword) {
            bail!(Code::FAILED_TO_PARSE, "Unknown $jsonSchema keyword: {keyword}");
        }
        if seen.contains(&keyword) {
            bail!(Code::FAILED_TO_PARSE, "Duplicate $jsonSchema keyword: {keyword}");
        }
        seen.push(keyword);
    }
    for keyword in ["description", "title"] {
        if source.get(keyword).is_some_and(|text| text.as_str().is_none()) {
            bail!(Code::TYPE_MISMATCH, "$jsonSchema keyword '{keyword}' must be of type string");
        }
    }
    if seen.contains(&"type") && seen.contains(&"bsonType") {
        bail!(Code::FAILED_TO_PARSE, "Cannot specify both $jsonSchema keywords 'type' and 'bsonType'");
    }
    let typed = ["type", "bsonType"].into_iter().find(|keyword| seen.contains(keyword));
    if let Some(keyword) = typed.filter(|_| seen.contains(&"encrypt")) {
        bail!(
            Code::FAILED_TO_PARSE,
            "$jsonSchema keyword 'encrypt' cannot be used in conjunction with '{keyword}', 'encrypt' implies type \
             'bsonType::BinData'"
        );
    }
    Ok(())
}

/// The names that `patternProperties` means; what is wrong with them has a code of its own there.
fn property_pattern(pattern: &str) -> Result<Regex> {
    Regex::new(pattern, "").map_err(|error| match error.code() {
        Code(51091) => Error::bad_value(format!(
            "Invalid regular expression in $jsonSchema keyword 'patternProperties': {}",
            error.message()
        )),
        _ => error,
    })
}

/// One keyword being parsed.
struct Parser<'s> {
    source: RawDoc<'s>,
    keyword: &'static str,
    element: Element<'s>,
    place: Place,
}

impl<'s> Parser<'s> {
    fn rule(&self) -> Result<Option<Rule>> {
        Ok(Some(match self.keyword {
            "multipleOf" => Rule::MultipleOf(self.positive()?),
            "maximum" => Rule::Maximum { exclusive: self.is_exclusive()?, bound: self.number()? },
            "minimum" => Rule::Minimum { exclusive: self.is_exclusive()?, bound: self.number()? },
            "maxLength" => Rule::MaxLength(self.count()?),
            "minLength" => Rule::MinLength(self.count()?),
            "pattern" => return self.pattern(),
            "minItems" => Rule::MinItems(self.count()?),
            "maxItems" => Rule::MaxItems(self.count()?),
            "uniqueItems" => match self.value() {
                Value::Bool(true) => Rule::UniqueItems,
                Value::Bool(false) => return Ok(None),
                _ => return self.wrong("a boolean"),
            },
            "items" => match self.value() {
                Value::Document(schema) => Rule::Items(Box::new(self.nested(schema)?)),
                Value::Array(array) => Rule::ItemsEach(self.schemas(array, false)?),
                _ => return self.wrong("an array or an object"),
            },
            "additionalItems" => return self.additional_items(),
            "encrypt" => Rule::Encrypt(self.encrypt()?),
            "encryptMetadata" => {
                self.encrypt_metadata()?;
                return Ok(None);
            }
            "properties" => Rule::Properties(self.properties()?),
            "patternProperties" => Rule::PatternProperties(self.pattern_properties()?),
            "additionalProperties" => return self.additional_properties(),
            "required" => Rule::Required(self.required()?),
            "minProperties" => Rule::MinProperties(self.count()?),
            "maxProperties" => Rule::MaxProperties(self.count()?),
            "dependencies" => Rule::Dependencies(self.dependencies()?),
            "allOf" => Rule::AllOf(self.alternatives()?),
            "anyOf" => Rule::AnyOf(self.alternatives()?),
            "oneOf" => Rule::OneOf(self.alternatives()?),
            "not" => Rule::Not(Box::new(self.alike(self.object()?)?)),
            "enum" => match self.enumeration()? {
                // Documents are compared with documents only.
                values if self.place.whole && !values.iter().any(is_document) => Rule::EmptyEnum,
                values => Rule::Enum(values),
            },
            "type" => Rule::Type { keyword: "type", types: self.json_types()? },
            _ => Rule::Type { keyword: "bsonType", types: self.bson_types()? },
        }))
    }

    fn value(&self) -> Value<'s> {
        self.element.value()
    }

    fn wrong<T>(&self, expected: &str) -> Result<T> {
        bail!(
            Code::TYPE_MISMATCH,
            "$jsonSchema keyword '{}' must be {expected}, but found an element of type {}",
            self.keyword,
            self.value().type_name()
        )
    }

    /// A schema of parts: properties or items.
    fn nested(&self, schema: RawDoc<'_>) -> Result<Schema> {
        parse(schema, Place { depth: self.place.depth + 1, whole: false, ..self.place })
    }

    /// A schema of what this one is about.
    fn alike(&self, schema: RawDoc<'_>) -> Result<Schema> {
        parse(schema, Place { depth: self.place.depth + 1, ..self.place })
    }

    /// The fields of a keyword about encryption.
    fn encryption(&self) -> Result<RawDoc<'s>> {
        if !self.place.encryption {
            bail!(
                Code::QUERY_FEATURE_NOT_ALLOWED,
                "Encryption-related validator keywords are not allowed in this context"
            );
        }
        if self.source.element("encrypt").is_some() && self.source.element("encryptMetadata").is_some() {
            bail!(
                Code::FAILED_TO_PARSE,
                "Cannot specify both $jsonSchema keywords 'encrypt' and 'encryptMetadata'"
            );
        }
        self.object()
    }

    fn encrypt(&self) -> Result<Option<TypeSet>> {
        let types = encrypt::check_fields(self.keyword, self.encryption()?)?;
        types.map(|element| Parser { keyword: "bsonType", element, ..*self }.bson_types()).transpose()
    }

    fn encrypt_metadata(&self) -> Result<()> {
        let fields = self.encryption()?;
        if fields.is_empty() {
            bail!(Code::FAILED_TO_PARSE, "$jsonSchema keyword 'encryptMetadata' cannot be an empty object");
        }
        encrypt::check_fields(self.keyword, fields).map(|_| ())
    }

    fn object(&self) -> Result<RawDoc<'s>> {
        self.value().as_doc().map_or_else(|| self.wrong("an object"), Ok)
    }

    /// Whether the bound itself is out of bounds.
    fn is_exclusive(&self) -> Result<bool> {
        let Some(exclusive) = exclusive_of(self.keyword) else { return Ok(false) };
        match self.source.get(exclusive) {
            None => Ok(false),
            Some(Value::Bool(exclusive)) => Ok(exclusive),
            Some(_) => bail!(Code::TYPE_MISMATCH, "$jsonSchema keyword '{exclusive}' must be a boolean"),
        }
    }

    fn number(&self) -> Result<OwnedValue> {
        if self.value().is_number() { Ok(self.value().into()) } else { self.wrong("a number") }
    }

    fn positive(&self) -> Result<OwnedValue> {
        let n = self.number()?;
        // NaN counts as positive, and nothing is a multiple of it.
        if number::to_decimal(n.as_value()).is_none_or(|n| n.is_zero() || n.is_negative()) {
            bail!(Code::FAILED_TO_PARSE, "$jsonSchema keyword 'multipleOf' must have a positive value");
        }
        Ok(n)
    }

    /// A length or number of items.
    fn count(&self) -> Result<i64> {
        if self.value().is_number() {
            return non_negative(self.element);
        }
        // Unlike other wrong types, this one is a matter of parsing integers.
        bail!(
            Code::FAILED_TO_PARSE,
            "Expected a number in: {}",
            sheaf_bson::element_text(self.keyword, self.value())
        )
    }

    fn pattern(&self) -> Result<Option<Rule>> {
        match self.value() {
            // A document is no string, so that mongod does not even read the pattern.
            Value::String(_) if self.place.whole => Ok(None),
            Value::String(text) => Ok(Some(Rule::Pattern(Regex::new(text, "")?))),
            _ => self.wrong("a string"),
        }
    }

    /// A list of schemas: of what this one is about, or of items.
    fn schemas(&self, array: RawDoc<'_>, alike: bool) -> Result<Vec<Schema>> {
        let schema = |item: Value<'_>| match item {
            Value::Document(schema) => {
                sheaf_meter::grow(size_of::<Schema>())?;
                if alike { self.alike(schema) } else { self.nested(schema) }
            }
            other => bail!(
                Code::TYPE_MISMATCH,
                "$jsonSchema keyword '{}' must be an array of objects, but found an element of type {}",
                self.keyword,
                other.type_name()
            ),
        };
        array.values().map(schema).collect()
    }

    fn alternatives(&self) -> Result<Vec<Schema>> {
        match self.value() {
            Value::Array(array) if array.is_empty() => {
                bail!(Code::BAD_VALUE, "$jsonSchema keyword '{}' must be a non-empty array", self.keyword)
            }
            Value::Array(array) => self.schemas(array, true),
            _ => self.wrong("an array"),
        }
    }

    fn additional_items(&self) -> Result<Option<Rule>> {
        let allowed = self.allowed()?;
        // Without a list of schemas in `items`, there are no additional items.
        let from = match self.source.get("items") {
            Some(Value::Array(items)) => items.count(),
            _ => return Ok(None),
        };
        Ok(allowed.map(|allowed| Rule::AdditionalItems { from, allowed }))
    }

    /// A boolean or a schema; `None` if everything is allowed.
    fn allowed(&self) -> Result<Option<Allowed>> {
        match self.value() {
            Value::Bool(true) => Ok(None),
            Value::Bool(false) => Ok(Some(Allowed::None)),
            Value::Document(schema) => Ok(Some(Allowed::If(Box::new(self.nested(schema)?)))),
            _ => self.wrong("either an object or a boolean"),
        }
    }

    fn properties(&self) -> Result<Vec<(Box<str>, Schema)>> {
        let mut properties = Vec::new();
        for element in self.object()?.iter() {
            let Value::Document(schema) = element.value() else {
                bail!(
                    Code::TYPE_MISMATCH,
                    "Nested schema for $jsonSchema property '{}' must be an object",
                    element.key()
                );
            };
            sheaf_meter::grow(size_of::<(Box<str>, Schema)>() + name_bytes(element.key()))?;
            properties.push((element.key().into(), self.nested(schema)?));
        }
        Ok(properties)
    }

    fn pattern_properties(&self) -> Result<Vec<(Regex, Schema)>> {
        let mut properties = Vec::new();
        for element in self.object()?.iter() {
            let Value::Document(schema) = element.value() else {
                bail!(
                    Code::TYPE_MISMATCH,
                    "$jsonSchema keyword 'patternProperties' has property '{}' which is not an object",
                    element.key()
                );
            };
            sheaf_meter::grow(size_of::<(Regex, Schema)>())?;
            let schema = self.nested(schema)?;
            properties.push((property_pattern(element.key())?, schema));
        }
        Ok(properties)
    }

    fn additional_properties(&self) -> Result<Option<Rule>> {
        let Some(allowed) = self.allowed()? else { return Ok(None) };
        let keys = |keyword| match self.source.get(keyword) {
            Some(Value::Document(doc)) => doc.iter().map(|element| element.key()).collect(),
            _ => Vec::new(),
        };
        let counted = |name: &str| {
            sheaf_meter::grow(size_of::<(&str, Box<str>)>() + name_bytes(name))?;
            Ok(Box::from(name))
        };
        let patterns = keys("patternProperties").into_iter().map(property_pattern);
        Ok(Some(Rule::AdditionalProperties {
            names: keys("properties").into_iter().map(counted).collect::<Result<_>>()?,
            patterns: patterns.collect::<Result<_>>()?,
            allowed,
        }))
    }

    fn required(&self) -> Result<Vec<Box<str>>> {
        match self.value() {
            Value::Array(array) => names(array, "$jsonSchema keyword 'required'"),
            _ => self.wrong("an array"),
        }
    }

    fn dependencies(&self) -> Result<Vec<(Box<str>, Dependency)>> {
        let mut dependencies = Vec::new();
        for element in self.object()?.iter() {
            let of = || format!("property '{}' in $jsonSchema keyword 'dependencies'", element.key());
            let dependency = match element.value() {
                Value::Document(schema) => Dependency::Schema(self.alike(schema)?),
                Value::Array(array) => Dependency::Properties(names(array, &of())?),
                // They may be explained like schemas.
                Value::String(_) if matches!(element.key(), "title" | "description") => continue,
                _ => bail!(Code::TYPE_MISMATCH, "{} must be either an object or an array", of()),
            };
            sheaf_meter::grow(size_of::<(Box<str>, Dependency)>() + name_bytes(element.key()))?;
            dependencies.push((element.key().into(), dependency));
        }
        Ok(dependencies)
    }

    fn enumeration(&self) -> Result<Vec<OwnedValue>> {
        let Value::Array(array) = self.value() else { return self.wrong("an array") };
        if array.is_empty() {
            bail!(Code::FAILED_TO_PARSE, "$jsonSchema keyword 'enum' cannot be an empty array");
        }
        sheaf_meter::grow(array.count() * size_of::<Value<'_>>())?;
        let values: Vec<Value<'_>> = array.values().collect();
        let repeated = |at: usize| try_any(&values[..at], |earlier| same(*earlier, values[at]));
        if try_any(0..values.len(), repeated)? {
            bail!(Code::FAILED_TO_PARSE, "$jsonSchema keyword 'enum' array cannot contain duplicate values.");
        }
        values.into_iter().map(own).collect()
    }

    fn bson_types(&self) -> Result<TypeSet> {
        self.check_type_names()?;
        parse_type_set(self.value(), false)
    }

    /// `type` knows JSON's types only.
    fn json_types(&self) -> Result<TypeSet> {
        self.check_type_names()?;
        let mut set = TypeSet::default();
        let names = match self.value() {
            Value::Array(names) => names.values().filter_map(|name| name.as_str()).collect(),
            name => name.as_str().into_iter().collect::<Vec<_>>(),
        };
        for name in names {
            match name {
                "number" => set.number = true,
                "boolean" => set.types.push(8),
                "array" => set.types.push(4),
                "object" => set.types.push(3),
                "string" => set.types.push(2),
                "null" => set.types.push(10),
                _ => bail!(Code::BAD_VALUE, "Unknown type name alias: {name}"),
            }
        }
        Ok(set)
    }

    fn check_type_names(&self) -> Result<()> {
        let names = match self.value() {
            Value::String(name) => return check_type_name(name),
            Value::Array(names) => names,
            _ => return self.wrong("either a string or an array of strings"),
        };
        let mut seen = Vec::new();
        for name in names.values() {
            let Value::String(name) = name else {
                bail!(
                    Code::TYPE_MISMATCH,
                    "$jsonSchema keyword '{}' array elements must be strings",
                    self.keyword
                );
            };
            check_type_name(name)?;
            if seen.contains(&name) {
                bail!(
                    Code::FAILED_TO_PARSE,
                    "$jsonSchema keyword '{}' has duplicate value: {name}",
                    self.keyword
                );
            }
            seen.push(name);
        }
        if seen.is_empty() {
            bail!(
                Code::FAILED_TO_PARSE,
                "$jsonSchema keyword '{}' must name at least one type",
                self.keyword
            );
        }
        Ok(())
    }
}

fn check_type_name(name: &str) -> Result<()> {
    if name == "integer" {
        bail!(Code::FAILED_TO_PARSE, "$jsonSchema type 'integer' is not currently supported.");
    }
    Ok(())
}

fn is_document(value: &OwnedValue) -> bool {
    matches!(value.as_value(), Value::Document(_))
}

/// A non-empty list of different names; `of` says whose it is.
fn names(array: RawDoc<'_>, of: &str) -> Result<Vec<Box<str>>> {
    if array.is_empty() {
        bail!(Code::FAILED_TO_PARSE, "{of} cannot be an empty array");
    }
    let mut names: Vec<Box<str>> = Vec::new();
    for item in array.values() {
        let Value::String(name) = item else {
            bail!(
                Code::TYPE_MISMATCH,
                "{of} must be an array of strings, but found an element of type: {}",
                item.type_name()
            );
        };
        sheaf_meter::tick(1 + names.len() as u32 / 8)?;
        if names.iter().any(|known| **known == *name) {
            bail!(Code::FAILED_TO_PARSE, "{of} array cannot contain duplicate values");
        }
        sheaf_meter::grow(size_of::<Box<str>>() + name_bytes(name))?;
        names.push(name.into());
    }
    Ok(names)
}
