"""The plots of the stories, as templates: a small problem, a turn, a lesson. For the training script only.

Slots: {name} the hero with {he} {him} {his} {He} {His}; {friend} with {fhe} {fhim} {fhis} {Fhe}; {elder} with {ehe};
{thing}, {food}, {place}, {place2}, {helper} (with {a_helper}), {sun} and {grey} for the weather. A blank line is a new
paragraph.
"""

from __future__ import annotations

LOST_THING = """\
{name} had a {thing}. It was a gift from {his} {elder}, [and {name} took it everywhere|and {name} loved it
more than anything else]. One {sun} morning, {name} went to the {place} to play. [The air was fresh and
the birds were singing.|The grass was soft and the birds were singing.] But when {he} came home, the
{thing} was gone.

"Oh no!" [said|cried] {name}. "[I have lost my {thing}.|My {thing} is gone!]" {He} looked under the
[bed|table]. {He} looked behind the [door|curtain]. [It was not there.|There was no {thing} there.] Then
{name} met {a_helper}. "[Why are you so sad?|What is the matter?]" asked the {helper}. "I cannot find my
{thing}," said {name}. "[Think|Think carefully]," said the {helper}. "Where did you play this morning?"
"At the {place}!" said {name}.

They went back to the {place} together. [They looked slowly, step by step.|They walked slowly and looked
at every stone.] At last the {helper} called, "Here it is!" The {thing} was lying under a [big leaf|grey
stone|bench]. {name} [was so happy|jumped for joy]. "Thank you," {he} said. "I was looking in a hurry, and
you were looking with care." From that day on, {name} always [looked after|took good care of] the {thing}.
"""

SHARING = """\
One {sun} day, {his} {elder} baked {a_food} and gave it to {name}. [It smelled wonderful.|It was still
warm.] {name} wanted to eat it all alone. {He} took the {food} to the {place} and sat down [under a
tree|on a low wall|in the grass].

Soon {friend} came by. "[What do you have there?|What is that?]" asked {friend}. "It is my {food}," said
{name}, and {he} hid it behind {his} back. {friend} said nothing and sat down. {Fhe} looked [hungry|tired
and hungry]. {name} took one bite. It did not taste as good as {he} had hoped. {He} looked at {friend} and
thought for a moment.

"Would you like half of it?" asked {name}. "Yes, please!" said {friend}, and {his_friend_smile}. So they
shared the {food}, and now it tasted [better than anything|sweeter than honey]. They [laughed and
talked|sat and talked|told jokes] until the sun went down. "It is strange," said {name}. "I have less
{food}, but I am happier." "That is what sharing does," said {friend}.
"""

STORM = """\
One {grey} afternoon, {name} and {friend} were playing at the {place}. [Dark clouds came over the
hill.|The sky became darker and darker.] "We should go home," said {friend}. But {name} [wanted to stay a
little longer|did not want to stop playing].

[Then the rain began to fall, and the wind blew hard.|Soon it rained so hard that they were wet to the
skin.] The path was full of mud and they could not see the way. {friend} began to cry. {name} was afraid
too, but {he} took {friend} by the hand. "[Do not worry|Do not cry]," said {name}. "We will [stay
together|find a way]." Just then they heard a voice. It was {a_helper}. "Come with me," said the {helper}.
"I know a dry place."

The {helper} led them to a [small hut|little cave|dry barn] near the {place2}. Inside it was warm. They
sat close together and told each other stories until the storm was over. When the sun came out, there was
a rainbow in the sky. {name} said, "Next time I will listen when you say it is time to go home." {friend}
smiled. "And next time I will hold your hand again," {fhe} said.
"""

BUILDING = """\
{name} wanted to build a [boat|tree house|bridge] all by {him}self. {He} found some wood near the {place}
and began to work. {He} worked very fast. {He} did not measure the wood, and {he} did not tie the ropes
well. [After one hour|Before noon] it fell down with a loud crash.

{name} was [angry|very cross]. "[I will never try again!|It is no use!]" {he} said. But {his} {elder} had
seen everything. "Good things take time," said {his} {elder}. "Let us begin again, slowly." So they began
again. First they measured every piece. Then they cut the wood. Then they tied the ropes, one knot after
another. {friend} came to help, and {fhe} brought [some nails|a hammer|a long rope].

They worked for three days. On the third day it was ready, and it was strong. {name} looked at it with
pride. "We did it!" {he} said. "[It was slow, but it will last.|It took a long time, but it was worth
it.]" {His} {elder} laughed and gave everyone a piece of {food}.
"""

DARK = """\
There was one thing that {name} did not like. {He} was afraid of the dark. [Every night|Every evening]
{he} asked {his} {elder} to leave [a lamp|a candle] on. One night the wind blew out the lamp. [The room
was black.|Everything was black.] {name} heard a [strange|small] sound: tap, tap, tap. {He} pulled the
blanket over {his} head.

Tap, tap, tap. There it was again. {name} took a deep breath. "I will be brave," {he} said. {He} walked
slowly to the window and opened it. On the other side sat {a_helper}. "Please let me in," said the
{helper}. "It is cold outside, and I am all alone." {name} had to laugh. "I was afraid of you, and you
were only cold!" {he} said.

{name} gave the {helper} [a warm place to sleep|a soft blanket|some warm milk]. Then they looked at the
stars together. [There were so many of them.|They shone like tiny lamps.] "You can only see the stars when
it is dark," said the {helper}. {name} thought about this for a long time. After that night, {he} was not
afraid of the dark any more.
"""

SEED = """\
One {sun} morning, {his} {elder} gave {name} a tiny seed. "Plant it and take care of it," {ehe} said.
"Then you will see." {name} [planted the seed in the garden|put the seed into the earth] and gave it some
water. The next day {he} ran out to look, but there was nothing. "It is a bad seed," said {name}.

"Wait a little," said {friend}. "A seed needs water, sun and time." So {name} gave it water every morning.
{He} waited one week. {He} waited two weeks. [Rain fell, and the sun shone.|It rained, and then the sun
came out again.] Then one day there was a small green leaf. {name} jumped for joy and called {friend}.
"Look, look! It is growing!"

The plant grew and grew. In summer it had a large [yellow|red|white] flower, and it was taller than
{name}. "You were right," said {name} to {friend}. "I could not see it, but it was working all the time."
In autumn {name} kept the new seeds and gave one to every [child|family] in the village.
"""

HONESTY = """\
One {grey} day, {name} was playing with a ball inside the house. {His} {elder} had told {him} not to do
that. {name} threw the ball up high. It hit a [blue|white|green] vase, and the vase fell down and broke.

{name} did not know what to do. {He} wanted to hide the pieces. "I could say that the [cat|wind|dog] did
it," {he} thought. But {his} heart felt heavy, like a stone. {He} went to the {place} and told {friend}
about it. "What should I do?" asked {name}. "Tell the truth," said {friend}. "It is hard for one minute. A
lie is hard for many days."

So {name} went home and said, "I broke the vase. I am sorry." {His} {elder} was quiet for a moment. Then
{ehe} said, "I am sad about the vase, but I am glad that you told me the truth." [They put the pieces
together with glue.|Together they mended it, piece by piece.] The vase was not perfect any more, but
{name} liked it even better than before.
"""

RESCUE = """\
One {sun} day, {name} was walking to the {place}. [Suddenly|Then] {he} heard a [small|thin] voice. "Help!
Help!" {name} looked around. A little bird was [sitting in the grass|lying under a bush]. It had hurt its
wing and could not fly.

"Do not be afraid," said {name}. {He} picked up the bird very gently and carried it home. {His} {elder}
found a box, and they put soft wool in it. {name} gave the bird water and small crumbs of {food}. Every
day {name} talked to the bird. Every day the bird became a little stronger. {friend} came to visit, and
{fhe} sang songs for it.

After two weeks the wing was well again. {name} opened the window. [{He} was sad, because {he} knew what
would happen.|It was hard to say goodbye.] The bird flew out and [up into the blue sky|away over the
roofs]. But the next morning there was a song outside. The bird had come back to say good morning. It came
back every day, and {name} was never lonely again.
"""

RACE = """\
Every year there was a race from the {place} to the {place2}. {friend} was the fastest of all. "Nobody can
beat me!" said {friend}. {name} was not fast at all, but {he} wanted to try. "[You are too slow|You will
be the last one]," said {friend}, and {fhe} laughed.

{name} did not answer. [Every morning|Each day] {he} got up early and ran. At first {he} ran a short way.
Then {he} ran a longer way. {His} {elder} gave {him} a drink of water and said, "A little every day is a
lot in a year." The day of the race came. It was {sun}, and many people were there. One, two, three, go!
{friend} ran ahead like [the wind|an arrow]. {Fhe} was so far ahead that {fhe} sat down to rest and fell
asleep.

{name} ran and ran, not fast, but without a stop. {He} passed {friend}, who was still asleep. And {he} was
the first one at the {place2}! "You won," said {friend}, "and I am sorry that I laughed." {name} shook
{fhis} hand. "Let us run together tomorrow," said {name}. And so they did.
"""

SOUP = """\
It was a {grey} winter, and there was not much to eat in the village. {name} had only one [carrot|turnip].
"What can I cook with so little?" asked {name}. {He} put a big pot on the fire in the middle of the square
and filled it with water.

{friend} came by. "What are you cooking?" {fhe} asked. "Soup for everyone," said {name}. "But it needs
something more." "I have two [potatoes|cabbages]," said {friend}, and {fhe} put them into the pot. Then
{a_helper} came by and brought [an onion|some beans|a bag of peas]. {name}'s {elder} brought some salt.
Soon all the people came, and each of them brought something small.

The soup began to smell wonderful. When it was ready, there was enough for everyone, and they ate together
around the fire. "How did you make so much soup from so little?" asked the {helper}. {name} smiled. "I did
not," {he} said. "We all did."
"""

LOST_WAY = """\
One {sun} day, {name} went into the forest to look for berries. {He} walked further and further. When the
basket was full, {name} looked around. {He} did not know the way home. "Which way should I go?" {he} said.
[All the trees looked the same.|There were trees on every side.] {name} sat down on a [log|stone] and felt
very small.

Then {he} remembered something. {His} {elder} had once said, "When you are lost, be still and listen." So
{name} closed {his} eyes and listened. {He} heard the [wind|leaves]. {He} heard a [bird|bee]. And far away
{he} heard water. "That is the river!" said {name}. "And the river goes to our village." {He} walked
towards the sound. On the way {he} met {a_helper}, who walked with {him} for a while.

[Before it was dark|Just before night], {name} saw the lights of the village. {His} {elder} was standing
at the door and held {him} tight. "I was lost," said {name}, "but I listened, and the river showed me the
way." That evening they ate the berries with {food}, and {name} told the story again and again.
"""

MUSIC = """\
[One day|One {grey} day] {name} found an old [violin|flute] in a box. {He} wanted to play it at once. But
it made a terrible sound, like [a cat in the rain|a rusty door]. {friend} put {fhis} hands over {fhis}
ears. "Please stop!" {fhe} said. {name} was sad and put it away.

{His} {elder} sat down beside {him}. "Nobody can play on the first day," {ehe} said. "Play one note today.
Play two notes tomorrow." So {name} went to the {place}, where nobody could hear, and played one note. The
next day {he} played two notes. Week after week {name} practised. Only {a_helper} was there to listen.
"That was better than yesterday," said the {helper} every time.

In spring there was a party in the village. {name} stood up to play. {He} was [nervous|a little afraid],
but {he} began to play. The music was clear and sweet, and everybody [was quiet|listened]. When it was
over, {friend} clapped the loudest. "How did you learn that?" {fhe} asked. "One note at a time," said
{name}.
"""

BIRTHDAY = """\
It was {name}'s birthday, but nobody said anything. {His} {elder} only said, "Good morning." {friend} did
not come to play. "Have they all forgotten me?" thought {name}. {He} went for a walk to the {place}, and
{he} felt sad.

On the way {he} met {a_helper} who carried a heavy basket. "Can I help you?" asked {name}. "Yes, please,"
said the {helper}. "It must go to the {place2}." So {name} carried the basket all the way. It was [heavy|a
long way], but it was good to help. At the {place2} it was very quiet. Then, suddenly, many voices called,
"Happy birthday, {name}!" There was {friend}, and there was {his} {elder}, and everyone was laughing.

The {helper} opened the basket. Inside was {a_food} with candles on it. "[You carried your own
surprise!|You have carried it all by yourself!]" said {friend}. {friend} gave {name} a {thing}. {name}
looked at all {his} friends. "This is the best day of the year," {he} said.
"""

QUARREL = """\
{name} and {friend} were best friends. They did everything together. But one {grey} day they both wanted
to play with the same {thing}. "It is mine!" said {name}. "No, it is my turn!" said {friend}. They pulled
and pulled, and the {thing} broke in two. [Both of them went home without a word.|They were both angry,
and they both went home.]

The next day {name} was alone at the {place}. {He} tried to play, but it was no fun. {He} saw a [funny
cloud|big rainbow|tiny frog], but there was nobody to show it to. "A {thing} is only a {thing}," {name}
thought. "But a friend is a friend." {He} went to see {friend}. At the same time {friend} had left home to
see {name}, and they met [in the middle of the bridge|at the corner of the street]. "I am sorry," said
{name}. "I am sorry," said {friend}. They had said it at the same time, and they began to laugh.

They took the {thing} to {name}'s {elder}, who showed them how to mend it. It took [the whole afternoon|a
long time]. After that they took turns. On Monday the {thing} was with {name}, and on Tuesday it was with
{friend}. And on Sunday they played with it together.
"""

TRADE = """\
One {sun} morning, {name} found a {thing} on the road. {He} took it to the market to find out whose it
was. At the market there was {a_helper}. "That is not mine," said the {helper}, "but I would love to have
it. I will give you {a_food} for it." {name} shook {his} head. "I cannot trade it," {he} said. "It is not
mine to give."

{name} asked at every door in the village. {He} asked the [baker|miller]. {He} asked the [teacher|doctor].
Nobody had lost a {thing}. In the evening {he} came to the last house, near the {place}. There sat
{friend}, who was new in the village and knew nobody. {Fhe} looked sad. "Have you lost a {thing}?" asked
{name}. {friend} jumped up. "Yes! It was the last gift from my old friends," {fhe} said.

{name} gave the {thing} back. {friend} was so happy that {fhe} did not know what to say. "Now you have an
old gift and a new friend," said {name}. They ate {food} together that evening, and the village was not a
strange place any more.
"""

LAMP = """\
Near the {place} stood an old lighthouse. {name}'s {elder} lit the lamp there every evening, so that the
boats could find the way. One {grey} evening, {his} {elder} was ill and had to stay in bed. "Who will
light the lamp?" {ehe} asked. "I will," said {name}.

There were one hundred steps. {name} [climbed and climbed|went up and up]. The wind was loud, and {his}
legs were tired. On the way up {he} wanted to stop. But then {he} thought of the boats out on the dark
water, and {he} went on. At the top {name} lit the lamp. A long [yellow|golden] light went out over the
sea. Far away a small [boat|ship] turned and came slowly to the harbour.

In that boat was {friend}, who had been fishing. "I could not see anything," said {friend}. "Then your
light came, and I knew where home was." {name} was tired, but {he} had never been so proud. {His} {elder}
smiled and said, "A small light can do a great thing."
"""

PLOTS = {
    "lost": LOST_THING, "sharing": SHARING, "storm": STORM, "building": BUILDING, "dark": DARK, "seed": SEED,
    "honesty": HONESTY, "rescue": RESCUE, "race": RACE, "soup": SOUP, "lost way": LOST_WAY, "music": MUSIC,
    "birthday": BIRTHDAY, "quarrel": QUARREL, "trade": TRADE, "lamp": LAMP,
}  # fmt: skip
LESSONS = {
    "lost": "slow eyes find what quick eyes miss", "sharing": "joy grows when it is shared",
    "storm": "it is wise to listen to a friend", "building": "good things take time",
    "dark": "there is light to be found in the dark", "seed": "patience makes things grow",
    "honesty": "the truth is lighter than a lie", "rescue": "a kind heart is never alone",
    "race": "a little every day goes a long way", "soup": "many small gifts make a feast",
    "lost way": "it helps to be still and listen", "music": "every skill begins with one note",
    "birthday": "those who help are not forgotten", "quarrel": "a friend is worth more than a thing",
    "trade": "honest people make good friends", "lamp": "even a small light can do a great thing",
}  # fmt: skip
SUBJECTS = {
    "lost": "a lost {thing}", "sharing": "sharing", "storm": "a storm", "building": "patience", "dark": "the dark",
    "seed": "a seed", "honesty": "honesty", "rescue": "a little bird", "race": "a race", "soup": "soup",
    "lost way": "finding the way home", "music": "music", "birthday": "a birthday", "quarrel": "two friends",
    "trade": "a gift", "lamp": "a lighthouse",
}  # fmt: skip
